"""memory fit

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('x5_jobs', sa.Column('fit', sa.JSON(), nullable=True))
    op.create_table('x5_frontiers',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('workload', sa.Text(), nullable=False),
    sa.Column('fingerprint', sa.String(length=32), nullable=False),
    sa.Column('device', sa.String(length=255), nullable=False),
    sa.Column('precision', sa.String(length=32), nullable=False),
    sa.Column('checkpointing', sa.Boolean(), nullable=False),
    sa.Column('limit_bytes', sa.BigInteger(), nullable=False),
    sa.Column('cap_bytes', sa.BigInteger(), nullable=False),
    sa.Column('micro_batch', sa.BigInteger(), nullable=False),
    sa.Column('peak_bytes', sa.BigInteger(), nullable=True),
    sa.Column('samples_per_s', sa.Double(), nullable=True),
    sa.Column('proofs', sa.JSON(), nullable=False),
    sa.Column('job_id', sa.String(length=36), nullable=False),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_x5_frontiers')),
    sa.UniqueConstraint('fingerprint', 'device', 'precision', 'checkpointing', 'limit_bytes',
                        name=op.f('uq_x5_frontiers_fingerprint')),
    )


def downgrade() -> None:
    op.drop_table('x5_frontiers')
    op.drop_column('x5_jobs', 'fit')
