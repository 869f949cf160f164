"""what lists of jobs are filtered by, on PostgreSQL too

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

from alembic import op


revision = '0010'
down_revision = '0009'
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Names are looked through without the wide rows: of 10,000 jobs 84 pages instead of 2,000. A name has at most 200
    # characters, which a b-tree holds; a workload may be a path of any length, which a hash holds.
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('UPDATE x5_jobs SET name = left(name, 200) WHERE length(name) > 200')  # were made of longer functions
        op.create_index('ix_x5_jobs_listed', 'x5_jobs', ['id'], postgresql_include=['name'])
        op.create_index('ix_x5_jobs_workload', 'x5_jobs', ['workload'], postgresql_using='hash')


def downgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.drop_index('ix_x5_jobs_workload', 'x5_jobs')
        op.drop_index('ix_x5_jobs_listed', 'x5_jobs')
