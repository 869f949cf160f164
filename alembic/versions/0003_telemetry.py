"""telemetry: traces, and energy on the receipt

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None

COLUMNS = ('energy_j', 'measured_runs', 'unmeasured_runs', 'energy_reason', 'is_simulated')


def upgrade() -> None:
    op.add_column('x5_jobs', sa.Column('energy_j', sa.Double(), nullable=False, server_default='0'))
    op.add_column('x5_jobs', sa.Column('measured_runs', sa.BigInteger(), nullable=False, server_default='0'))
    op.add_column('x5_jobs', sa.Column('unmeasured_runs', sa.BigInteger(), nullable=False, server_default='0'))
    op.add_column('x5_jobs', sa.Column('energy_reason', sa.String(length=32), nullable=True))
    op.add_column('x5_jobs', sa.Column('is_simulated', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table('x5_traces',
    sa.Column('job_id', sa.String(length=36), nullable=False),
    sa.Column('number', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('probe', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('trace', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id', 'number'], ['x5_trials.job_id', 'x5_trials.number'],
                            name='fk_x5_traces_trial', ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('job_id', 'number', 'probe', name=op.f('pk_x5_traces')),
    )


def downgrade() -> None:
    op.drop_table('x5_traces')
    for name in reversed(COLUMNS):
        op.drop_column('x5_jobs', name)
