"""Jobs: created, found, cancelled, deleted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.database import now
from service.expressions import is_among, looked_at
from service.models import Confirmation, Event, Job, Point, Trace, Trial
from service.store import events, studies

ENDED_STATES = ("succeeded", "failed", "cancelled")
OPEN_STATES = ("queued", "running")
STATES = (*OPEN_STATES, *ENDED_STATES)
_JOB, _TRIAL = Job.__table__, Trial.__table__


def create(session: Session, job: Job) -> Job:
    job.last_event = 1
    session.add(job)
    session.flush()
    events.add_numbered(session, job.id, 1, [("state", {"state": "queued"})])
    return job


def get(session: Session, job_id: str, *, lock: bool = False) -> Job | None:
    query = sa.select(Job).where(Job.id == job_id)
    return session.scalar(query.with_for_update() if lock else query)


_ID = sa.select(Job.id).where(Job.id == sa.bindparam("job_id"))


def exists(session: Session, job_id: str) -> bool:
    return session.scalar(_ID, {"job_id": job_id}) is not None


def standing(session: Session, job_id: str) -> sa.Row[str, int] | None:
    """The job's `state` and the number of its `last_event`."""
    return session.execute(sa.select(Job.state, Job.last_event).where(Job.id == job_id)).first()


def last_events(session: Session, job_ids: Iterable[str]) -> Mapping[str, int]:
    """The number of each job's last event; a job that is gone is left out."""
    rows = session.execute(sa.select(Job.id, Job.last_event).where(Job.id.in_(list(job_ids))))
    return {job_id: last for job_id, last in rows}  # noqa: C416 - rows are no tuples to mypy


def by_idempotency_key(session: Session, key: str) -> Job | None:
    return session.scalar(sa.select(Job).where(Job.idempotency_key == key))


def search(
    session: Session,
    *,
    states: Sequence[str] = (),
    workload: str | None = None,
    text: str | None = None,
    id_prefix: str | None = None,
    before: str | None = None,
    limit: int = 50,
) -> Sequence[str]:
    """The ids of jobs newest first, those older than `before`. `text` is looked for in the name, in any case.

    No more than ids: sorting whole rows would read all that match (SQLite: 39 ms of 10,000).
    """
    found = sa.select(Job.id).order_by(Job.id.desc()).limit(limit)
    if states:  # of open jobs there are few; ended ones are nearly all, and newest first the first page is soon full
        state = Job.state if set(states) <= set(OPEN_STATES) else looked_at(Job.state)
        found = found.where(state.in_(states))
    if workload is not None:
        found = found.where(Job.workload == workload)
    if text:
        pattern = sa.select(sa.func.lower(_containing(text))).scalar_subquery()  # once, not for each name
        found = found.where(sa.func.lower(Job.name).like(pattern, escape="/"))
    if id_prefix:
        found = found.where(Job.id.startswith(id_prefix, autoescape=True))
    if before is not None:
        found = found.where(Job.id < before)
    return session.scalars(found).all()


def _containing(text: str) -> str:
    """A pattern of LIKE. PostgreSQL's ILIKE, which lowers by itself, takes half as long again."""
    for special in "/%_":
        text = text.replace(special, f"/{special}")
    return f"%{text}%"


def shown(columns: Iterable[sa.ColumnElement[Any]]) -> sa.Select[*tuple[Any, ...]]:
    """These columns of the jobs `ids`, newest first, with `baseline_*` of the baseline's trial and `study_id`.

    To be made once and asked again and again: making it takes longer than asking it.
    """
    baseline = _TRIAL.alias()
    return (
        sa.select(
            *columns,
            baseline.c.number.label("baseline_number"),
            baseline.c.value.label("baseline_value"),
            baseline.c.value_kind.label("baseline_kind"),
            baseline.c.outcome.label("baseline_outcome"),
            studies.table.c.study_id,
        )
        .select_from(_JOB)
        .outerjoin(baseline, sa.and_(baseline.c.job_id == _JOB.c.id, baseline.c.number == _JOB.c.baseline_trial))
        .outerjoin(studies.table, studies.table.c.study_name == _JOB.c.id)
        .where(is_among(_JOB.c.id, "ids"))
        .order_by(_JOB.c.id.desc())
    )


@dataclass(slots=True)
class Tally:
    """How many trials of a job are paused now, and how many ended how."""

    paused: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)


_TALLIES = (
    sa.select(_TRIAL.c.job_id, _TRIAL.c.outcome, sa.func.count())
    .where(is_among(_TRIAL.c.job_id, "ids"), sa.or_(_TRIAL.c.outcome.is_not(None), _TRIAL.c.state == "paused"))
    .group_by(_TRIAL.c.job_id, _TRIAL.c.outcome)
    .order_by(_TRIAL.c.job_id, _TRIAL.c.outcome)
)


def tallies(session: Session, job_ids: Iterable[str]) -> Mapping[str, Tally]:
    """The trials of each job, counted."""
    found = {job_id: Tally() for job_id in job_ids}
    if not found:
        return found
    for job_id, outcome, count in session.execute(_TALLIES, {"ids": list(found)}).all():
        if outcome is None:
            found[job_id].paused = count
        else:
            found[job_id].outcomes[outcome] = count
    return found


def counts_by_state(session: Session) -> dict[str, int]:
    counts = dict.fromkeys(STATES, 0)
    for state, count in session.execute(sa.select(Job.state, sa.func.count()).group_by(Job.state)):
        counts[state] = count
    return counts


@dataclass(frozen=True, slots=True)
class Spent:
    """What all stored jobs have taken together; runs whose energy is known, and others."""

    device_seconds: float
    energy_j: float
    measured_runs: int
    unmeasured_runs: int


def spent(session: Session) -> Spent:
    columns = (Job.device_seconds, Job.energy_j, Job.measured_runs, Job.unmeasured_runs)
    sums = session.execute(sa.select(*(sa.func.coalesce(sa.func.sum(column), 0) for column in columns))).one()
    return Spent(float(sums[0]), float(sums[1]), int(sums[2]), int(sums[3]))


def open_of_token(session: Session, token_id: str) -> int:
    """How many jobs that this token has submitted wait or run."""
    mine = sa.and_(Job.token_id == token_id, Job.state.in_(OPEN_STATES))
    return session.scalar(sa.select(sa.func.count()).select_from(Job).where(mine)) or 0


def request_cancel(session: Session, job: Job) -> None:
    """Queued: ends now. Running: its runner is asked to wind down. Ended: nothing. `job` is locked by the caller."""
    if job.state == "queued":
        job.state = "cancelled"
        job.stop_reason = "cancelled"
        job.cancel_requested = True
        job.phase = None
        session.execute(sa.update(Job).where(Job.id == job.id).values(ended_at=now()))
        ended = {"state": "cancelled", "verdict": job.verdict, "stop_reason": "cancelled"}
        session.flush()
        events.append(session, job.id, [("state", {"state": "cancelled"}), ("end", ended)])
    elif job.state == "running" and not job.cancel_requested:
        job.cancel_requested = True
        session.flush()
        events.append(session, job.id, [("state", {"state": "running", "cancel_requested": True})])


def delete(session: Session, job_id: str) -> None:
    """Remove a job and all that belongs to it; its recipes stay."""
    for table in (Event, Point, Trace, Confirmation, Trial):
        session.execute(sa.delete(table).where(table.job_id == job_id))
    session.execute(sa.delete(Job).where(Job.id == job_id))
