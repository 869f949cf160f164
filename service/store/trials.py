"""Trials, their curves and the confirmation runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.models import Confirmation, Point, Trace, Trial
from tuner import records


def page(job_id: str, *, after: int | None, limit: int) -> sa.Select[Trial]:
    """Trials by number, those behind `after`."""
    query = sa.select(Trial).where(Trial.job_id == job_id).order_by(Trial.number).limit(limit)
    return query if after is None else query.where(Trial.number > after)


def one(job_id: str, number: int) -> sa.Select[Trial]:
    return sa.select(Trial).where(Trial.job_id == job_id, Trial.number == number)


def curves(session: Session, job_id: str, numbers: Iterable[int]) -> Mapping[int, list[dict[str, Any]]]:
    """The reports of trials, as they are shown."""
    found: dict[int, list[dict[str, Any]]] = {number: [] for number in numbers}
    columns = (Point.index, Point.position, Point.step, Point.value, Point.value_kind)
    query = sa.select(Point.number, *columns).where(Point.job_id == job_id, Point.number.in_(found))
    names = [column.key for column in columns]
    for number, *point in session.execute(query.order_by(Point.number, Point.index)):
        found[number].append(dict(zip(names, point, strict=True)))
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


def traces(job_id: str, number: int) -> sa.Select[Trace]:
    return sa.select(Trace).where(Trace.job_id == job_id, Trace.number == number).order_by(Trace.probe)


def confirmations(job_id: str) -> sa.Select[Confirmation]:
    query = sa.select(Confirmation).where(Confirmation.job_id == job_id)
    return query.order_by(Confirmation.ended_at, Confirmation.trial, Confirmation.seed)
