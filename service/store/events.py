"""The events of a job: numbered from 1 without gaps, in the order in which they were committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.clean import clean_json
from service.models import Event, Job

BATCH = 500

EventDraft = tuple[str, Mapping[str, Any]]  # type and data


def append(session: Session, job_id: str, drafts: Sequence[EventDraft]) -> None:
    """Number and store events. Locks the job's row until the transaction ends: that is what closes gaps."""
    last = session.scalar(
        sa.update(Job).where(Job.id == job_id).values(last_event=Job.last_event + len(drafts)).returning(Job.last_event)
    )
    if last is not None:
        add_numbered(session, job_id, last, drafts)


def add_numbered(session: Session, job_id: str, last: int, drafts: Sequence[EventDraft]) -> None:
    """Store events whose numbers, ending at `last`, the caller has taken already."""
    first = last - len(drafts) + 1
    if drafts:
        session.execute(
            sa.insert(Event),
            [
                {"job_id": job_id, "seq": first + offset, "type": type_, "data": dict(data)}
                for offset, (type_, data) in enumerate(drafts)
            ],
        )


def after(session: Session, job_id: str, seq: int, *, limit: int = BATCH) -> Sequence[Event]:
    return session.scalars(
        sa.select(Event).where(Event.job_id == job_id, Event.seq > seq).order_by(Event.seq).limit(limit)
    ).all()


def is_logged(session: Session, job_id: str, data: Mapping[str, Any]) -> bool:
    """Whether the job has this very event of type `log`."""
    logged = session.scalars(sa.select(Event.data).where(Event.job_id == job_id, Event.type == "log"))
    return clean_json(dict(data)) in logged.all()
