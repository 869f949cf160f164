"""the token that a job was submitted with

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('x5_jobs', sa.Column('token_id', sa.String(length=36), nullable=True))
    op.create_index(op.f('ix_x5_jobs_token_id'), 'x5_jobs', ['token_id'])


def downgrade() -> None:
    op.drop_index(op.f('ix_x5_jobs_token_id'), 'x5_jobs')
    op.drop_column('x5_jobs', 'token_id')
