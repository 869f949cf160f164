"""Many event streams are one query at a time, and only those whose job has news are woken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sqlalchemy as sa

from service import watching
from service.database import Database
from service.store import events, jobs
from service.watching import JobWatch
from tests.service.support import add_job

STREAMS = 30


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "POLL_S", 0.01)


def test_all_waiting_streams_share_one_query_and_only_the_one_with_news_is_woken(database: Database) -> None:
    ids = [add_job(database) for _ in range(STREAMS)]
    asked: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))

    async def scene() -> list[str]:
        watch = JobWatch(database, lambda: False)
        waiting = {asyncio.create_task(watch.news(job_id, 1, 30.0), name=job_id) for job_id in ids}
        while len(asked) < 6:
            await asyncio.sleep(0.005)
        queries = [query for query in asked if "x5_jobs" in query]
        assert all(query.count("?") + query.count("%(") == STREAMS for query in queries), "a query for each stream"
        await asyncio.to_thread(append, database, ids[7])
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for each in others:
            each.cancel()
        return [task.get_name() for task in done]

    assert asyncio.run(scene()) == [ids[7]]


def test_a_deleted_job_and_a_stop_wake_and_silence_does_not(database: Database) -> None:
    quiet, gone = add_job(database), add_job(database)
    with database.write() as session:
        jobs.delete(session, gone)
    is_stopping = False

    async def scene() -> list[bool]:
        nonlocal is_stopping
        watch = JobWatch(database, lambda: is_stopping)
        found = [await watch.news(gone, 1, 30.0), await watch.news(quiet, 1, 0.1)]
        is_stopping = True
        return [*found, await watch.news(quiet, 1, 30.0)]

    assert asyncio.run(scene()) == [True, False, True]


def test_streams_outlast_a_database_that_is_away(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = add_job(database)
    away = True

    def refuse(*_: Any) -> None:
        if away:
            raise sa.exc.OperationalError("", {}, Exception("away"))

    sa.event.listen(database.engine, "before_cursor_execute", refuse)

    async def scene() -> bool:
        nonlocal away
        watch = JobWatch(database, lambda: False)
        assert not await watch.news(job_id, 1, 0.1)
        away = False
        await asyncio.to_thread(append, database, job_id)
        return await watch.news(job_id, 1, 30.0)

    assert asyncio.run(scene())


def append(database: Database, job_id: str) -> None:
    with database.write() as session:
        events.append(session, job_id, [("log", {})])
