"""Where the jobs stand that somebody watches: one query for all event streams of this process, four times a second.

The runner that writes events is another process, perhaps elsewhere, so the database is asked. A stream reads its events
only when its job has some.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from service.database import Database
from service.store import jobs

log = logging.getLogger("x5tune.api")

POLL_S = 0.25


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A stream that has told all events of a job up to `after`."""

    job_id: str
    after: int
    news: asyncio.Event


class JobWatch:
    """Belongs to one event loop. It asks only while somebody waits; nobody does any more once `is_stopping`."""

    def __init__(self, database: Database, is_stopping: Callable[[], bool]) -> None:
        self._database, self._is_stopping = database, is_stopping
        self._waiting: set[_Waiting] = set()
        self._task: asyncio.Task[None] | None = None

    async def news(self, job_id: str, after: int, patience_s: float) -> bool:
        """Whether to look again: within `patience_s` there were events after `after`, the job is gone, or we stop."""
        waiting = _Waiting(job_id, after, asyncio.Event())
        self._waiting.add(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            await asyncio.wait_for(waiting.news.wait(), patience_s)
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(waiting)
        return True

    async def _watch(self) -> None:
        is_failing = False
        while self._waiting:
            await asyncio.sleep(POLL_S)
            if self._is_stopping():
                for each in self._waiting:
                    each.news.set()
                return
            asked = tuple(self._waiting)
            try:
                last = await run_in_threadpool(self._last_events, {each.job_id for each in asked})
                is_failing = False
            except SQLAlchemyError as error:  # streams stay open while the database is away
                if not is_failing:
                    log.warning("event streams: the database does not answer: %s", error)
                is_failing = True
                continue
            for each in asked:
                if last.get(each.job_id, each.after + 1) > each.after:
                    each.news.set()

    def _last_events(self, job_ids: Iterable[str]) -> Mapping[str, int]:
        with self._database.read() as session:
            return jobs.last_events(session, job_ids)
