"""Schedules and their nights: what is due, what came of it, what stands."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.database import now
from service.models import Confirmation, Job, Night, Recipe, Schedule
from service.store.jobs import ENDED_STATES

NIGHTS_SHOWN = 100


def get(session: Session, schedule_id: str, *, lock: bool = False) -> Schedule | None:
    query = sa.select(Schedule).where(Schedule.id == schedule_id)
    return session.scalar(query.with_for_update() if lock else query)


def page(session: Session, *, before: str | None, limit: int) -> Sequence[Schedule]:
    """Newest first, those older than the id `before`."""
    query = sa.select(Schedule).order_by(Schedule.id.desc()).limit(limit)
    return session.scalars(query if before is None else query.where(Schedule.id < before)).all()


def nights(session: Session, schedule_id: str, limit: int = NIGHTS_SHOWN) -> Sequence[Night]:
    """Newest first."""
    query = sa.select(Night).where(Night.schedule_id == schedule_id)
    return session.scalars(query.order_by(Night.due_at.desc()).limit(limit)).all()


def clock(session: Session) -> datetime:
    """The database's clock: the one that all API processes go by."""
    return session.scalars(sa.select(now())).one()


def due(session: Session, at: datetime) -> Sequence[Schedule]:
    query = sa.select(Schedule).where(Schedule.state == "active", Schedule.next_at <= at)
    return session.scalars(query.order_by(Schedule.next_at)).all()


def unended_job(session: Session, schedule_id: str) -> Job | None:
    """The schedule's newest job that still waits or runs."""
    query = sa.select(Job).where(Job.schedule_id == schedule_id, Job.state.not_in(ENDED_STATES))
    return session.scalar(query.order_by(Job.id.desc()).limit(1).with_for_update())


def unended_jobs(session: Session, schedule_id: str) -> int:
    """How many of the schedule's jobs wait or run."""
    mine = sa.and_(Job.schedule_id == schedule_id, Job.state.not_in(ENDED_STATES))
    return session.scalar(sa.select(sa.func.count()).select_from(Job).where(mine)) or 0


def uncompared(session: Session, limit: int = 20) -> Sequence[Night]:
    """Nights whose job has ended or is gone and that nobody has compared or is comparing."""
    ended = sa.select(Job.id).where(Job.id == Night.job_id, Job.state.not_in(ENDED_STATES)).exists()
    query = sa.select(Night).where(Night.outcome == "submitted", Night.comparison.is_(None), ~ended)
    return session.scalars(query.order_by(Night.due_at).limit(limit).with_for_update(skip_locked=True, of=Night)).all()


def last_measured(session: Session, night: Night) -> Night | None:
    """The night before this one in which the same recipe stood and was measured."""
    query = sa.select(Night).where(
        Night.schedule_id == night.schedule_id,
        Night.due_at < night.due_at,
        Night.standing_recipe_id == night.standing_recipe_id,
        Night.comparison.is_not(None),
    )
    return session.scalar(query.order_by(Night.due_at.desc()).limit(1))


def measured_values(session: Session, job_id: str, trial: int | None) -> list[float]:
    """A trial's values on fresh seeds, or the baseline's where `trial` is None."""
    query = sa.select(Confirmation.value).where(
        Confirmation.job_id == job_id, Confirmation.outcome == "ok", Confirmation.value.is_not(None)
    )
    query = query.where(Confirmation.is_baseline if trial is None else Confirmation.trial == trial)
    return [float(value) for value in session.scalars(query.order_by(Confirmation.seed)) if value is not None]


def proven_recipe(session: Session, job_id: str) -> Recipe | None:
    query = sa.select(Recipe).where(Recipe.job_id == job_id, Recipe.status == "proven", Recipe.rank == 1)
    return session.scalar(query.limit(1))
