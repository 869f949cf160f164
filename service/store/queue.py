"""The queue: who may work on which job. A lease has an owner, an attempt and an expiry on the database's clock.

An expired lease can be taken by another runner; a job whose runner was lost `MAX_LOST_LEASES` times without a single
run that ended in between is taken for the cause and fails. Handing a job back does not count. The fence (`fence`, and
`guard` for the study's tables) protects the database only: a runner that lost its lease may still be training for the
second or so until it notices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from service.database import now
from service.errors import LeaseLostError
from service.models import Job
from service.store import events
from service.store.events import EventDraft
from service.store.jobs import OPEN_STATES

MAX_LOST_LEASES = 5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job: valid while the job's row names this owner and this attempt."""

    job_id: str
    owner: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that was just claimed, detached from its session."""

    job: Job
    lease: Lease


def claim(session: Session, owner: str, lease_s: float) -> Claim | None:
    """Take the queued job of the highest priority, the oldest first; a job whose lease has expired counts as queued."""
    while (job := _next(session)) is not None:
        if job.state == "running":
            job.lost_leases += 1
            if job.lost_leases >= MAX_LOST_LEASES:
                _give_up(session, job)
                continue
        lease = Lease(job.id, owner, job.attempt + 1)
        session.execute(
            sa.update(Job)
            .where(Job.id == job.id)
            .values(
                state="running",
                lost_leases=job.lost_leases,
                attempt=lease.attempt,
                lease_owner=owner,
                lease_expires_at=now(lease_s),
                started_at=sa.func.coalesce(Job.started_at, now()),
            )
            .execution_options(synchronize_session=False)
        )
        events.append(session, job.id, [("state", {"state": "running", "attempt": lease.attempt})])
        session.flush()
        session.refresh(job)
        session.expunge(job)
        return Claim(job, lease)
    return None


def earlier_runs(session: Session, job_ids: Iterable[str]) -> Mapping[str, str]:
    """The jobs among these that wait for an earlier run of their schedule, each with the first of those."""
    earlier = aliased(Job)
    query = sa.select(Job.id, sa.func.min(earlier.id)).join(earlier, _comes_before(earlier))
    rows = session.execute(query.where(Job.id.in_(list(job_ids))).group_by(Job.id))
    return {job_id: first for job_id, first in rows}  # noqa: C416 - rows are no tuples to mypy


def has_work(session: Session) -> bool:
    """Whether `claim` may find something; needs no write transaction."""
    return session.scalar(sa.select(Job.id).where(_is_free(), ~_waits_for_its_turn()).limit(1)) is not None


def _is_free() -> sa.ColumnElement[bool]:
    return sa.or_(Job.state == "queued", sa.and_(Job.state == "running", Job.lease_expires_at < now()))


def _waits_for_its_turn() -> sa.ColumnElement[bool]:
    """A run of a schedule starts when the one before has ended: it measures again what that one found."""
    return sa.exists().where(_comes_before(aliased(Job)))


def _comes_before(earlier: type[Job]) -> sa.ColumnElement[bool]:
    return sa.and_(earlier.schedule_id == Job.schedule_id, earlier.id < Job.id, earlier.state.in_(OPEN_STATES))


def _next(session: Session) -> Job | None:
    query = sa.select(Job).where(_is_free(), ~_waits_for_its_turn()).order_by(Job.priority.desc(), Job.id).limit(1)
    return session.scalar(query.with_for_update(skip_locked=True))


def _give_up(session: Session, job: Job) -> None:
    error = (
        f"The runner of this job was lost {job.lost_leases} times before any run ended: "
        "the job is taken for the cause and not tried again."
    )
    session.execute(
        sa.update(Job)
        .where(Job.id == job.id)
        .values(
            state="failed",
            stop_reason="error",
            error=error,
            lost_leases=job.lost_leases,
            ended_at=now(),
            lease_owner=None,
            lease_expires_at=None,
            phase=None,
        )
        .execution_options(synchronize_session=False)
    )
    ended = {"state": "failed", "verdict": None, "stop_reason": "error", "error": error}
    events.append(session, job.id, [("state", {"state": "failed"}), ("end", ended)])
    session.flush()
    session.expire(job)


def fence(session: Session, lease: Lease, drafts: Sequence[EventDraft] = (), **changes: Any) -> None:
    """Check the lease, change the job's row and append events, in one statement that locks the row.

    Everything else that a runner writes in the same transaction is thereby under the lease. Raises `LeaseLostError`.
    """
    last = session.scalar(
        sa.update(Job)
        .where(*_holds(lease))
        .values(last_event=Job.last_event + len(drafts), **changes)
        .returning(Job.last_event)
        .execution_options(synchronize_session=False)
    )
    if last is None:
        raise LeaseLostError(f"Job {lease.job_id} is no longer this runner's (attempt {lease.attempt}).")
    events.add_numbered(session, lease.job_id, last, drafts)


def extend(session: Session, lease: Lease, lease_s: float) -> None:
    """Renew the lease; raises `LeaseLostError`."""
    fence(session, lease, lease_expires_at=now(lease_s))


def expire(session: Session, owner: str) -> None:
    """The owner is dead, or cannot go on: what it holds is free at once, and counts as lost."""
    held = sa.update(Job).where(Job.lease_owner == owner, Job.state == "running")
    session.execute(held.values(lease_expires_at=now(-1)).execution_options(synchronize_session=False))


def cancel_requested(session: Session, lease: Lease) -> bool:
    """Whether the job is to wind down; raises `LeaseLostError`."""
    requested = session.scalar(sa.select(Job.cancel_requested).where(*_holds(lease)))
    if requested is None:
        raise LeaseLostError(f"Job {lease.job_id} is no longer this runner's (attempt {lease.attempt}).")
    return requested


def guard(lease: Lease) -> Callable[[sa.Connection], None]:
    """What puts somebody else's transactions under the lease: call it in each before its commit.

    It raises `LeaseLostError`; on PostgreSQL it also keeps the job from being claimed until the transaction has ended.
    """
    held = sa.select(Job.id).where(*_holds(lease)).with_for_update(read=True)

    def check(connection: sa.Connection) -> None:
        if connection.scalar(held) is None:
            raise LeaseLostError(f"Job {lease.job_id} is no longer this runner's (attempt {lease.attempt}).")

    return check


def release(session: Session, lease: Lease) -> None:
    """Hand the job back: it is queued again, with everything that its study has learnt."""
    fence(
        session,
        lease,
        [("state", {"state": "queued", "reason": "handed back by its runner"})],
        state="queued",
        lease_owner=None,
        lease_expires_at=None,
    )


def _holds(lease: Lease) -> list[sa.ColumnElement[bool]]:
    return [
        Job.id == lease.job_id,
        Job.lease_owner == lease.owner,
        Job.attempt == lease.attempt,
        Job.state == "running",
    ]
