"""schedules, their nights, webhooks

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op


revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('x5_schedules',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('cron', sa.String(length=255), nullable=False),
    sa.Column('timezone', sa.String(length=64), nullable=False),
    sa.Column('overlap', sa.String(length=32), nullable=False),
    sa.Column('missed', sa.String(length=32), nullable=False),
    sa.Column('spec', sa.JSON(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('webhook', sa.Text(), nullable=True),
    sa.Column('standing_recipe_id', sa.String(length=36), nullable=True),
    sa.Column('next_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('ends_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_x5_schedules')),
    )
    op.create_index(op.f('ix_x5_schedules_next_at'), 'x5_schedules', ['next_at'])
    op.create_table('x5_nights',
    sa.Column('schedule_id', sa.String(length=36), nullable=False),
    sa.Column('due_at', sa.DateTime(timezone=True), nullable=False),
    sa.Column('by_hand', sa.Boolean(), nullable=False),
    sa.Column('outcome', sa.String(length=32), nullable=False),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('job_id', sa.String(length=36), nullable=True),
    sa.Column('standing_recipe_id', sa.String(length=36), nullable=True),
    sa.Column('comparison', sa.JSON(), nullable=True),
    sa.ForeignKeyConstraint(['schedule_id'], ['x5_schedules.id'], name=op.f('fk_x5_nights_schedule_id'),
                            ondelete='CASCADE'),
    sa.PrimaryKeyConstraint('schedule_id', 'due_at', name=op.f('pk_x5_nights')),
    )
    op.create_index(op.f('ix_x5_nights_job_id'), 'x5_nights', ['job_id'])
    op.create_table('x5_deliveries',
    sa.Column('id', sa.String(length=36), nullable=False),
    sa.Column('url', sa.Text(), nullable=False),
    sa.Column('body', sa.JSON(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('attempts', sa.Integer(), nullable=False),
    sa.Column('error', sa.Text(), nullable=True),
    sa.Column('next_at', sa.DateTime(timezone=True), nullable=True),
    sa.Column('created_at', sa.DateTime(timezone=True), nullable=False),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_x5_deliveries')),
    )
    op.create_index(op.f('ix_x5_deliveries_next_at'), 'x5_deliveries', ['next_at'])
    op.add_column('x5_jobs', sa.Column('webhook', sa.Text(), nullable=True))
    op.create_index(op.f('ix_x5_jobs_schedule_id'), 'x5_jobs', ['schedule_id'])


def downgrade() -> None:
    op.drop_index(op.f('ix_x5_jobs_schedule_id'), 'x5_jobs')
    op.drop_column('x5_jobs', 'webhook')
    op.drop_table('x5_deliveries')
    op.drop_table('x5_nights')
    op.drop_table('x5_schedules')
