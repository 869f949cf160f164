"""what the learning rate range test of a job came to

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('x5_jobs', sa.Column('range_test', sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column('x5_jobs', 'range_test')
