"""Lists read the rows that they show, by their ids, and of all others an index at most."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from service import views
from service.database import Database
from service.expressions import is_among
from service.ids import new_id
from service.settings import Settings
from service.store import jobs

KNOWN = ["one", "t'wo", '{"3"}', "ü,\\"]


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
        {"states": ["failed"], "workload": "quadratic", "text": "night"},
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


def test_ended_jobs_are_not_sorted_which_are_nearly_all(sqlite_settings: Settings) -> None:
    database = Database(sqlite_settings.database_url)
    steps = plan(database, states=["succeeded", "failed"], limit=20)
    database.close()
    assert not any("ORDER BY" in step for step in steps), steps


def test_the_jobs_of_a_page_and_their_trials_are_found_by_their_ids(sqlite_settings: Settings) -> None:
    asked: list[str] = []
    database = Database(sqlite_settings.database_url)
    sa.event.listen(database.engine, "before_cursor_execute", lambda *told: asked.append(told[2]))
    ids = [new_id() for _ in range(200)]
    with database.read() as session:
        session.execute(views.JOBS, {"ids": ids})
        jobs.tallies(session, ids)
        statements = [each for each in asked if "x5_" in each]
        plans = [session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {each}", ("[]", "paused")[: each.count("?")])
                 for each in statements]  # fmt: skip
        steps = [row[3] for plan in plans for row in plan]
    database.close()
    assert len(statements) == 2
    assert not [step for step in steps if step.startswith("SCAN") and "json_each" not in step], steps


@pytest.mark.parametrize("texts", [[], ["one"], KNOWN, [*map(str, range(5000)), "one"]], ids=len)
def test_a_list_of_any_length_is_one_parameter(settings: Settings, texts: list[str]) -> None:
    rows = sa.union_all(*(sa.select(sa.literal(text).label("text")) for text in (*KNOWN, "0 "))).cte()
    query = sa.select(rows.c.text).where(is_among(rows.c.text, "texts"))
    database = Database(settings.database_url)
    with database.read() as session:
        found = session.scalars(query, {"texts": texts}).all()
    database.close()
    assert sorted(found) == sorted(set(texts) & set(KNOWN))


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
