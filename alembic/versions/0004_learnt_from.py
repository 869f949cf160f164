"""learnt from: the earlier jobs that a job's search starts from

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('x5_jobs', sa.Column('learnt_from', sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column('x5_jobs', 'learnt_from')
