"""Trials, their curves and the confirmation runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.models import Confirmation, Point, Trace, Trial
from tuner import records


def page(session: Session, job_id: str, *, after: int | None, limit: int) -> Sequence[Trial]:
    """Trials by number, those behind `after`."""
    query = sa.select(Trial).where(Trial.job_id == job_id).order_by(Trial.number).limit(limit)
    return session.scalars(query if after is None else query.where(Trial.number > after)).all()


def get(session: Session, job_id: str, number: int) -> Trial | None:
    return session.get(Trial, (job_id, number))


def curves(session: Session, job_id: str, numbers: Iterable[int]) -> Mapping[int, list[Point]]:
    found: dict[int, list[Point]] = {number: [] for number in numbers}
    query = sa.select(Point).where(Point.job_id == job_id, Point.number.in_(found))
    for point in session.scalars(query.order_by(Point.number, Point.index)):
        found[point.number].append(point)
    return found


def indexes(session: Session, job_id: str, number: int) -> set[int]:
    """The reports of a trial that are stored."""
    query = sa.select(Point.index).where(Point.job_id == job_id, Point.number == number)
    return set(session.scalars(query))


def ended(session: Session, job_id: str) -> Sequence[Trial]:
    return session.scalars(sa.select(Trial).where(Trial.job_id == job_id, Trial.state == "ended")).all()


def counts_by_outcome(session: Session) -> dict[str, int]:
    """Ended trials of all jobs, by outcome."""
    query = sa.select(Trial.outcome, sa.func.count()).where(Trial.outcome.is_not(None)).group_by(Trial.outcome)
    return {str(outcome): count for outcome, count in session.execute(query)}


def last_positions(session: Session, job_id: str) -> Mapping[int, float]:
    """How far each trial got on the fidelity axis, as far as it reported."""
    query = sa.select(Point.number, sa.func.max(Point.position)).where(Point.job_id == job_id).group_by(Point.number)
    return {number: position for number, position in session.execute(query)}  # noqa: C416 - rows are no tuples to mypy


def add_points(session: Session, job_id: str, number: int, points: Sequence[records.Point]) -> None:
    """Store reports; of a report told twice (a study resumed) the first stays."""
    rows = [
        {
            "job_id": job_id,
            "number": number,
            "index": point.index,
            "position": point.position,
            "step": point.step,
            "value": point.value.number,
            "value_kind": point.value.kind,
        }
        for point in points
    ]
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(postgresql.insert(Point).on_conflict_do_nothing(), rows)
    else:
        session.execute(sqlite.insert(Point).on_conflict_do_nothing(), rows)


def traces(session: Session, job_id: str, number: int) -> Sequence[Trace]:
    query = sa.select(Trace).where(Trace.job_id == job_id, Trace.number == number)
    return session.scalars(query.order_by(Trace.probe)).all()


def confirmations(session: Session, job_id: str) -> Sequence[Confirmation]:
    query = sa.select(Confirmation).where(Confirmation.job_id == job_id)
    return session.scalars(query.order_by(Confirmation.ended_at, Confirmation.trial, Confirmation.seed)).all()
