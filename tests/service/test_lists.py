"""Lists read the rows that they show, by their ids, and of all others an index at most."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from service.database import Database
from service.ids import new_id
from service.settings import Settings
from service.store import jobs


def plan(database: Database, **wanted: Any) -> list[str]:
    """How SQLite finds the ids of a list of jobs."""
    asked: list[tuple[str, Any]] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda *told: asked.append((told[2], told[3])))
    with database.read() as session:
        jobs.search(session, **wanted)
        statement, parameters = next(each for each in asked if "x5_jobs" in each[0])
        rows = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    return [row[3] for row in rows]


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 200},
        {"states": ["succeeded"]},
        {"states": ["succeeded", "running"], "before": new_id()},
        {"workload": "quadratic"},
        {"text": "night"},
        {"text": "night", "workload": "quadratic", "before": new_id()},
        {"id_prefix": "0189"},
    ],
    ids=" ".join,
)
def test_what_a_list_shows_is_found_by_an_index_alone(sqlite_settings: Settings, wanted: dict[str, Any]) -> None:
    database = Database(sqlite_settings.database_url)
    steps = plan(database, **wanted)
    database.close()
    assert any("x5_jobs" in step for step in steps)
    assert all("COVERING INDEX" in step for step in steps if "x5_jobs" in step), steps


@pytest.mark.postgres
def test_postgresql_plans_only_once_what_is_asked_again_and_again(postgres_settings: Settings) -> None:
    database = Database(postgres_settings.database_url)
    planned = sa.text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%x5_jobs%'")
    for _ in range(10):
        with database.read() as session:
            assert not jobs.exists(session, new_id())
    with database.read() as session:
        assert session.scalar(planned) == 1
    database.close()
