"""A database with data in it, as earlier versions left it, goes on under this one; on both databases."""

from __future__ import annotations

import json
import random
import string
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from alembic import command
from service import migrate
from service.database import Database
from service.settings import Settings
from service.store import tokens
from tests.service.support import SPEC, running_service
from tuner.spec import MAX_NAME_CHARS, resolve

JOB, RECIPE, TOKEN = (f"01890000-0000-7000-8000-00000000000{digit}" for digit in range(3))
SECRET = "x5t_made-by-an-earlier-version"
EARLIER = ["0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009"]


def fill(database: Database) -> None:
    """An ended job with a trial and a recipe, and a token: every column that has to be given a value is given one."""
    resolved = resolve(SPEC).job.to_json()
    rows: dict[str, dict[str, Any]] = {
        "x5_jobs": {"id": JOB, "name": "old", "state": "succeeded", "verdict": "recommended", "spec": SPEC}
        | {"resolved": resolved, "best_trial": 1, "best_value": 0.3, "last_event": 1, "workload": "quadratic"},
        "x5_trials": {"job_id": JOB, "number": 1, "state": "ended", "outcome": "ok"}
        | {"parameters": {"lr": 0.1}, "warnings": {}, "value": 0.3, "value_kind": "finite"},
        "x5_points": {"job_id": JOB, "number": 1, "index": 1, "step": 10, "value": 0.3, "value_kind": "finite"},
        "x5_events": {"job_id": JOB, "seq": 1, "type": "end", "data": {"state": "succeeded"}},
        "x5_recipes": {"id": RECIPE, "job_id": JOB, "trial": 1, "rank": 1, "status": "proven", "value": 0.3},
        "x5_tokens": {"id": TOKEN, "name": "old", "scope": "submit", "hash": tokens.digest(SECRET)},
    }
    with database.engine.execution_options(x5_write=True).begin() as connection:
        for name, values in rows.items():
            table = sa.Table(name, sa.MetaData(), autoload_with=connection, resolve_fks=False)
            needed = {
                each.name: _least(each) for each in table.columns if not each.nullable and not each.server_default
            }
            connection.execute(sa.insert(table).values({**needed, **values}))


def _least(column: sa.Column[Any]) -> Any:
    """A value that an earlier version could have stored where nothing else is said."""
    kind = column.type
    if isinstance(kind, sa.JSON):
        return [] if column.name in ("probes", "warnings", "diagnosis") else {}
    if isinstance(kind, sa.DateTime):
        return sa.func.now()
    if isinstance(kind, sa.Boolean):
        return False
    return "" if isinstance(kind, sa.String) else 0


@pytest.mark.parametrize("revision", EARLIER)
def test_what_an_earlier_version_left_is_read_and_gone_on_with(empty_settings: Settings, revision: str) -> None:
    migrate.upgrade(empty_settings)  # Optuna's tables too
    command.downgrade(migrate._config(empty_settings), "base")
    command.upgrade(migrate._config(empty_settings), revision)
    database = Database(empty_settings.database_url)
    fill(database)
    database.close()

    migrate.upgrade(empty_settings)

    with running_service(empty_settings) as service, service.client(None) as client:
        client.headers["Authorization"] = f"Bearer {SECRET}"
        job = client.get(f"/v1/jobs/{JOB}").json()
        [trial] = client.get(f"/v1/jobs/{JOB}/trials").json()["items"]
        [recipe] = client.get(f"/v1/jobs/{JOB}/recipes").json()["items"]
        events = client.get(f"/v1/jobs/{JOB}/events").text
        assert client.get(f"/jobs/{JOB}").status_code == client.get("/metrics").status_code == 200
        fork = client.post(f"/v1/jobs/{JOB}/fork")
        listed = client.get("/v1/jobs").json()["items"]
    assert (job["name"], job["state"], job["best"]["value"], job["spec"]) == ("old", "succeeded", 0.3, SPEC)
    assert (trial["parameters"], [point["value"] for point in trial["curve"]]) == ({"lr": 0.1}, [0.3])
    assert (recipe["id"], recipe["status"]) == (RECIPE, "proven")
    assert json.loads(events.split("data: ")[1].splitlines()[0])["type"] == "end"
    assert (fork.status_code, fork.json()["parent_id"]) == (201, JOB)
    assert [each["id"] for each in listed] == [fork.json()["id"], JOB]


def test_a_name_longer_than_what_may_be_given_is_cut(empty_settings: Settings) -> None:
    migrate.upgrade(empty_settings)
    command.downgrade(migrate._config(empty_settings), "0009")
    database = Database(empty_settings.database_url)
    fill(database)
    long = "".join(random.Random(1).choices(string.ascii_letters, k=9000))
    with database.write() as session:
        session.execute(sa.text("UPDATE x5_jobs SET name = :long, workload = :long"), {"long": long})

    migrate.upgrade(empty_settings)

    with database.read() as session:
        found = session.execute(sa.text("SELECT name, workload FROM x5_jobs")).one()
    is_sqlite = empty_settings.is_sqlite  # whose indexes hold what is longer
    assert tuple(found) == (long if is_sqlite else long[:MAX_NAME_CHARS], long)
    database.close()


def test_every_earlier_revision_is_tried() -> None:
    script = ScriptDirectory(str(migrate.scripts()))
    assert [each.revision for each in script.walk_revisions()][::-1][:-1] == EARLIER
