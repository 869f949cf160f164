"""The events of a job as Server-Sent Events, read when `service.watching` says that there are some."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from fastapi import APIRouter, Header, Request
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from service import schemas
from service.auth import CanRead
from service.context import Db, require_id
from service.database import Database
from service.errors import FieldError, invalid, not_found
from service.models import Event
from service.store import events, jobs
from service.watching import JobWatch

router = APIRouter(prefix="/jobs/{job_id}/events", tags=["events"], dependencies=[CanRead])

HEARTBEAT_S = 10.0


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


@router.get("", response_class=EventStream)
async def stream(
    request: Request, job_id: str, db: Db, last_event_id: Annotated[str | None, Header()] = None
) -> EventStream:
    """All events from the first, or those after `Last-Event-ID`; ends after the event `end`."""
    after = _position(last_event_id)
    require_id("job", job_id)
    if not await run_in_threadpool(_exists, db, job_id):
        raise not_found("job", job_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return EventStream(_follow(request, db, job_id, after), headers=headers)


async def _follow(request: Request, db: Database, job_id: str, after: int) -> AsyncIterator[str]:
    yield ": x5tune\n\n"  # the headers leave at once, before anything happens
    watch: JobWatch = request.app.state.watch
    while not request.app.state.is_stopping:
        try:
            fresh, is_over = await run_in_threadpool(_read, db, job_id, after)
        except SQLAlchemyError:  # it was there a moment ago; the watch says when it is back
            fresh, is_over = (), False
        for event in fresh:
            after = event.seq
            yield _frame(event)
            if event.type == "end":
                return
        if is_over:
            return
        if len(fresh) < events.BATCH:
            while not await watch.news(job_id, after, HEARTBEAT_S):
                yield ": still here\n\n"


def _read(db: Database, job_id: str, after: int) -> tuple[Sequence[Event], bool]:
    """What is new, and whether nothing can follow: the job is gone, or has ended and all is told."""
    with db.read() as session:
        fresh = events.after(session, job_id, after)
        if fresh:
            return fresh, False
        standing = jobs.standing(session, job_id)
    return (), standing is None or (standing.state in jobs.ENDED_STATES and after >= standing.last_event)


def _exists(db: Database, job_id: str) -> bool:
    with db.read() as session:
        return jobs.exists(session, job_id)


def _frame(event: Event) -> str:
    content = {
        "id": event.seq,
        "type": event.type,
        "time": schemas.rfc3339(event.time),
        "job_id": event.job_id,
        "data": event.data,
    }
    return f"id: {event.seq}\nevent: {event.type}\ndata: {json.dumps(content, allow_nan=False)}\n\n"


def _position(last_event_id: str | None) -> int:
    if last_event_id is None or not last_event_id.strip():
        return 0
    text = last_event_id.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise invalid([FieldError("Last-Event-ID", last_event_id, "must be the id of an event: a whole number")])
    return int(text)
