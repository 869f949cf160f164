"""Schedules over HTTP: made, changed, run by hand, removed, and every way to get one wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from service.models import Job, Schedule
from service.settings import Settings
from tests.service.support import SPEC, Service, running_service
from tests.service.test_jobs_api import MISSING, problem

RULES: dict[str, Any] = {"name": "nightly", "cron": "0 2 * * *", "timezone": "Europe/Berlin", "spec": SPEC}


def test_a_schedule_is_made_listed_and_shown(any_service: Service) -> None:
    with any_service.client("submit") as client:
        answer = client.post("/v1/schedules", json=RULES)
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/schedules/{made['id']}"
        assert client.get(answer.headers["location"]).json() == made
        assert client.get("/v1/schedules").json() == {"items": [made], "next": None}
    assert (made["state"], made["overlap"], made["missed"], made["nights"]) == ("active", "skip", "once", [])
    assert made["next_at"].endswith(("T00:00:00.000Z", "T01:00:00.000Z"))
    assert made["spec"] == SPEC
    assert "02:00" in made["cron_words"]


def test_it_is_yaml_too(service: Service) -> None:
    text = "name: n\ncron: '@daily'\nspec: {workload: quadratic, search: {lr: {low: 1e-4, high: 1, log: true}}}\n"
    with service.client("submit") as client:
        answer = client.post("/v1/schedules", content=text, headers={"Content-Type": "application/yaml"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["spec"]["search"]["lr"]["low"] == 1e-4


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"overlap": "both"}, "overlap"),
        ({"missed": "twice"}, "missed"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": None}, "name"),
        ({"colour": "red"}, "colour"),
        ({"ends_at": "2020-01-01T00:00:00Z"}, "ends_at"),
        ({"ends_at": "soon"}, "ends_at"),
        ({"ends_at": "9999-12-31T23:59:59-12:00"}, "ends_at"),
        ({"spec": {"workload": "nope"}}, "spec.workload"),
        ({"spec": {**SPEC, "search": {"lr": {"low": 1, "high": 0}}}}, "spec.search.lr"),
        ({"spec": None}, "spec"),
        ({"webhook": "ftp://x"}, "webhook"),
        ({"webhook": "https://u:p@example.org"}, "webhook"),
        ({"webhook": "https://example.org"}, "webhook"),  # nothing to sign it with
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_made(shared: Service, changes: dict[str, Any], field: str) -> None:
    with shared.client("submit") as client:
        found = problem(client.post("/v1/schedules", json={**RULES, **changes}), 422)
        assert any(error["field"].startswith(field) for error in found["errors"]), found
        assert client.get("/v1/schedules").json()["items"] == []


def test_it_is_paused_resumed_and_changed(service: Service) -> None:
    with service.client("submit") as client:
        path = f"/v1/schedules/{client.post('/v1/schedules', json=RULES).json()['id']}"
        paused = client.patch(path, json={"state": "paused"}).json()
        assert (paused["state"], paused["next_at"]) == ("paused", None)
        assert client.patch(path, json={"cron": "30 4 * * *", "timezone": "UTC"}).json()["next_at"] is None
        resumed = client.patch(path, json={"state": "active"}).json()
        assert resumed["next_at"].endswith("T04:30:00.000Z")
        assert client.patch(path, json={"ends_at": "2020-01-01T00:00:00Z"}).json()["state"] == "ended"
        assert client.patch(path, json={"ends_at": None, "state": "active"}).json()["state"] == "active"
        problem(client.patch(path, json={"cron": None}), 422)
        problem(client.patch(path, json={"state": "ended"}), 422)
        problem(client.patch(path, json={"spec": {"workload": "nope"}}), 422)
        assert client.get(path).json()["cron"] == "30 4 * * *"


def test_a_run_by_hand_is_a_job_of_the_schedule(any_service: Service) -> None:
    with any_service.client("submit") as client:
        path = f"/v1/schedules/{client.post('/v1/schedules', json=RULES).json()['id']}"
        answer = client.post(f"{path}/run")
        assert answer.status_code == 201
        job = client.get(answer.headers["location"]).json()
        [night] = client.get(path).json()["nights"]
    assert job["schedule_id"] == path.rpartition("/")[2]
    assert (night["job_id"], night["by_hand"], night["outcome"], night["comparison"]) == (
        job["id"], True, "submitted", None
    )  # fmt: skip


def test_removing_one_leaves_its_jobs(any_service: Service) -> None:
    with any_service.client("submit") as client:
        path = f"/v1/schedules/{client.post('/v1/schedules', json=RULES).json()['id']}"
        client.post(f"{path}/run")
        assert client.delete(path).status_code == 204
        problem(client.get(path), 404)
        problem(client.delete(path), 404)
    with any_service.database.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Job)) == 1


def test_who_may_only_read_changes_nothing(service: Service) -> None:
    with service.client("submit") as client:
        path = f"/v1/schedules/{client.post('/v1/schedules', json=RULES).json()['id']}"
    with service.client("read") as client:
        assert client.get(path).status_code == 200
        for answer in (
            client.post("/v1/schedules", json=RULES),
            client.patch(path, json={"state": "paused"}),
            client.post(f"{path}/run"),
            client.delete(path),
        ):
            problem(answer, 403)


def test_an_unknown_schedule_is_404(shared: Service) -> None:
    with shared.client() as client:
        for method, path in (("GET", ""), ("PATCH", ""), ("DELETE", ""), ("POST", "/run")):
            for name in (MISSING, "nightly", "..%2f..%2fetc"):
                problem(client.request(method, f"/v1/schedules/{name}{path}", json={}), 404)


def test_a_schedule_is_due_by_itself(sqlite_settings: Settings) -> None:
    """The service's own clock, its own thread: a schedule that is due every minute is made due now."""
    from service.models import Schedule
    from service.store import schedules
    from tests.service.support import wait_for

    with running_service(replace(sqlite_settings, webhook_secret="x" * 16)) as service, service.client() as client:
        rules = {**RULES, "cron": "* * * * *", "webhook": "https://hooks.example.org/x"}
        path = f"/v1/schedules/{client.post('/v1/schedules', json=rules).json()['id']}"
        with service.database.write() as session:
            session.execute(sa.update(Schedule).values(next_at=schedules.clock(session)))
        wait_for(lambda: client.get(path).json()["nights"])
        assert client.get(path).json()["nights"][0]["outcome"] == "submitted"


def test_a_zone_that_this_machine_does_not_know_hides_no_schedule(service: Service) -> None:
    with service.client("submit") as client:
        made = client.post("/v1/schedules", json=RULES).json()
        with service.database.write() as session:
            session.execute(sa.update(Schedule).values(timezone="Mars/Base"))
        [item] = client.get("/v1/schedules").json()["items"]
        assert (item["id"], item["cron_words"]) == (made["id"], RULES["cron"])
        found = problem(client.patch(f"/v1/schedules/{made['id']}", json={"name": "other"}), 422)
        assert found["errors"][0]["field"] == "timezone"
        assert client.patch(f"/v1/schedules/{made['id']}", json={"timezone": "UTC"}).status_code == 200
