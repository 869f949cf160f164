"""What is not kept for ever: details of jobs that ended long ago, old messages, copies of folders.

A job's row, its trials with their curves, its confirmations and its recipes stay; of its events those that say how it
ended. Every step may be repeated, and several processes may do it at once.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service import snapshots
from service.database import Database, now
from service.models import Base, Delivery, Event, Job, LoginSession, Night, Trace, Trial
from service.settings import Settings
from service.store import jobs

log = logging.getLogger("x5tune.api")

DAY_S = 86400.0
JOBS_AT_ONCE = 50
KEPT_EVENTS = ("state", "recipe", "end")
NIGHTS_KEPT_DAYS = 730.0


@dataclass
class Swept:
    """How much was removed, or would be."""

    events: int = 0
    traces: int = 0
    logs: int = 0
    messages: int = 0
    logins: int = 0
    nights: int = 0
    folders: int = 0

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def words(self) -> str:
        counts = [(each.name, getattr(self, each.name)) for each in fields(self)]
        return ", ".join(f"{count} {name}" for name, count in counts if count) or "nothing"


def sweep(database: Database, settings: Settings, *, is_dry: bool = False) -> Swept:
    """Remove what is older than `settings.keep_days`; `is_dry` only counts."""
    swept = Swept()
    with database.read() as session:
        old = list(session.scalars(_old(settings.keep_days)))
    for ids in _batches(old):
        with database.write() as session:
            _thin(session, ids, swept, is_dry=is_dry)
    with database.write() as session:
        age = now(-settings.keep_days * DAY_S)
        delivered = sa.and_(Delivery.next_at.is_(None), Delivery.created_at < age)
        swept.messages = _remove(session, Delivery, delivered, is_dry=is_dry)
        swept.logins = _remove(session, LoginSession, LoginSession.expires_at <= now(), is_dry=is_dry)
        very_old = now(-max(settings.keep_days, NIGHTS_KEPT_DAYS) * DAY_S)
        swept.nights = _remove(session, Night, Night.due_at < very_old, is_dry=is_dry)
    for folder in _folders(settings, set(old), database):
        swept.folders += 1
        if not is_dry:
            _remove_folder(settings, folder)
    return swept


def log_sweep(database: Database, settings: Settings) -> None:
    """The same, saying what was removed."""
    swept = sweep(database, settings)
    if swept:
        log.info("removed %s", swept.words())


def _old(keep_days: float) -> sa.Select[str]:
    """Jobs that ended so long ago and have details left."""
    ended = sa.and_(Job.state.in_(jobs.ENDED_STATES), Job.ended_at < now(-keep_days * DAY_S))
    events = sa.exists().where(Event.job_id == Job.id, Event.type.not_in(KEPT_EVENTS))
    traces = sa.exists().where(Trace.job_id == Job.id)
    logs = sa.exists().where(Trial.job_id == Job.id, Trial.log_tail != "")
    return sa.select(Job.id).where(ended, sa.or_(events, traces, logs)).order_by(Job.id)


def _thin(session: Session, ids: Sequence[str], swept: Swept, *, is_dry: bool) -> None:
    told = sa.and_(Event.job_id.in_(ids), Event.type.not_in(KEPT_EVENTS))
    swept.events += _remove(session, Event, told, is_dry=is_dry)
    swept.traces += _remove(session, Trace, Trace.job_id.in_(ids), is_dry=is_dry)
    with_logs = sa.and_(Trial.job_id.in_(ids), Trial.log_tail != "")
    swept.logs += session.scalar(sa.select(sa.func.count()).select_from(Trial).where(with_logs)) or 0
    if not is_dry:
        session.execute(
            sa.update(Trial).where(with_logs).values(log_tail="").execution_options(synchronize_session=False)
        )


def _remove(session: Session, model: type[Base], which: sa.ColumnElement[bool], *, is_dry: bool) -> int:
    count = session.scalar(sa.select(sa.func.count()).select_from(model).where(which)) or 0
    if count and not is_dry:
        session.execute(sa.delete(model).where(which).execution_options(synchronize_session=False))
    return count


def _folders(settings: Settings, old: set[str], database: Database) -> Iterator[Path]:
    """Copies of folders whose job is gone, or ended long ago."""
    if not settings.snapshots.is_dir():
        return
    ended = sa.and_(Job.state.in_(jobs.ENDED_STATES), Job.ended_at < now(-settings.keep_days * DAY_S))
    for folder in sorted(settings.snapshots.iterdir()):
        with database.read() as session:
            is_known = session.scalar(sa.select(sa.exists().where(Job.id == folder.name)))
            is_over = session.scalar(sa.select(sa.exists().where(Job.id == folder.name, ended)))
        if folder.name in old or is_over or (not is_known and snapshots.is_left(folder)):
            yield folder


def _remove_folder(settings: Settings, folder: Path) -> None:
    snapshots.remove(settings.snapshots / folder.name)
    shutil.rmtree(folder, ignore_errors=True)


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), JOBS_AT_ONCE):
        yield ids[start : start + JOBS_AT_ONCE]
