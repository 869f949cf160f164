"""indexes for what is counted: trials by outcome, jobs whose end is to be told

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0009'
down_revision = '0008'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index('ix_x5_trials_outcome', 'x5_trials', ['outcome'])
    few = sa.text('webhook IS NOT NULL')
    op.create_index('ix_x5_jobs_webhook', 'x5_jobs', ['state'], sqlite_where=few, postgresql_where=few)


def downgrade() -> None:
    op.drop_index('ix_x5_jobs_webhook', 'x5_jobs')
    op.drop_index('ix_x5_trials_outcome', 'x5_trials')
