"""The runners that have announced themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.database import now
from service.models import Runner

FORGET_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SeenRunner:
    """A runner and whether it has been heard of within the lease time."""

    runner: Runner
    is_live: bool


def register(session: Session, runner: Runner) -> None:
    """Announce a runner, and forget those that fell silent a day ago."""
    session.execute(sa.delete(Runner).where(Runner.last_seen < now(-FORGET_S)))
    session.add(runner)
    session.flush()


def beat(session: Session, runner: Runner, *, state: str, job_id: str | None) -> None:
    """Say that the runner lives and what it does; registers it again when its row is gone."""
    found = session.execute(
        sa.update(Runner)
        .where(Runner.id == runner.id)
        .values(last_seen=now(), state=state, job_id=job_id)
        .returning(Runner.id)
        .execution_options(synchronize_session=False)
    ).first()
    if found is None:
        columns = {"id", "host", "pid", "version", "resources"}
        session.add(Runner(**{name: getattr(runner, name) for name in columns}, state=state, job_id=job_id))


def remove(session: Session, runner_id: str) -> None:
    session.execute(sa.delete(Runner).where(Runner.id == runner_id))


def seen(session: Session, silence_s: float) -> Sequence[SeenRunner]:
    """All runners, the longest-lived first."""
    rows = session.execute(sa.select(Runner, Runner.last_seen > now(-silence_s)).order_by(Runner.id))
    return [SeenRunner(runner, bool(is_live)) for runner, is_live in rows]
