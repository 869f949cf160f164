"""A job from another one's specification, changed."""

from __future__ import annotations

from typing import Any

import pytest

from service.forking import changed
from tests.service.support import SPEC, Service
from tests.service.test_jobs_api import MISSING, problem

LR = {"low": 1e-4, "high": 0.1, "log": True}


@pytest.mark.parametrize(
    ("spec", "changes", "expected"),
    [
        ({"budget": {"trials": 4, "seconds": 60}}, {"budget": {"trials": 8}}, {"budget": {"trials": 8, "seconds": 60}}),
        ({"budget": {"trials": 4, "seconds": 60}}, {"budget": {"seconds": None}}, {"budget": {"trials": 4}}),
        ({"search": {"lr": LR}}, {"search": {"lr": {"high": 1.0}}}, {"search": {"lr": {**LR, "high": 1.0}}}),
        ({"search": {"lr": LR}}, {"search": {"lr": {"choices": [1]}}}, {"search": {"lr": {"choices": [1]}}}),
        ({"search": {"lr": {"choices": [1]}}}, {"search": {"lr": LR}}, {"search": {"lr": LR}}),
        ({"search": {"lr": LR}}, {"search": {"lr": 0.1}}, {"search": {"lr": 0.1}}),
        ({"workload": {"command": ["a"], "folder": "/x"}}, {"workload": "quadratic"}, {"workload": "quadratic"}),
        ({"workload": {"command": ["a"]}}, {"workload": {"python": "b:c"}}, {"workload": {"python": "b:c"}}),
        ({"seed": 1}, {}, {"seed": 1}),
        ({"name": "a"}, {}, {"name": "a (fork)"}),
        ({"name": "a (fork)"}, {}, {"name": "a (fork)"}),
        ({"name": "a"}, {"name": "b"}, {"name": "b"}),
        ({"name": "x" * 200}, {}, {"name": "x" * 193 + " (fork)"}),
    ],
)
def test_changes_are_merged_in(spec: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]) -> None:
    before = repr(spec)
    assert changed(spec, changes) == expected
    assert repr(spec) == before


def test_a_fork_is_a_new_job_that_names_its_parent(any_service: Service) -> None:
    with any_service.client("submit") as client:
        parent = client.post("/v1/jobs", json={**SPEC, "name": "first"}).json()
        answer = client.post(f"/v1/jobs/{parent['id']}/fork", json={"budget": {"trials": 9}})
        fork = answer.json()
        assert answer.status_code == 201
        assert client.get(answer.headers["location"]).json() == fork
    assert (fork["parent_id"], fork["state"], fork["name"]) == (parent["id"], "queued", "first (fork)")
    assert fork["spec"] == {**SPEC, "name": "first (fork)", "budget": {"trials": 9}}
    assert fork["id"] != parent["id"]


def test_without_a_body_it_is_the_same_again(service: Service) -> None:
    with service.client("submit") as client:
        parent = client.post("/v1/jobs", json=SPEC).json()
        fork = client.post(f"/v1/jobs/{parent['id']}/fork").json()
        yaml = client.post(
            f"/v1/jobs/{parent['id']}/fork", content="seed: 3", headers={"Content-Type": "application/yaml"}
        )
    assert fork["spec"] == SPEC
    assert yaml.json()["spec"]["seed"] == 3


def test_a_retry_gives_the_first_fork_and_a_dry_run_none(service: Service) -> None:
    with service.client("submit") as client:
        path = f"/v1/jobs/{client.post('/v1/jobs', json=SPEC).json()['id']}/fork"
        first, again = (client.post(path, json={"seed": 5}, headers={"Idempotency-Key": "k"}) for _ in range(2))
        assert (first.status_code, again.status_code, first.json()["id"]) == (201, 200, again.json()["id"])
        dry = client.post(path, params={"dry_run": "true"}, json={"seed": 6})
        assert dry.json()["resolved"]["seed"] == 6
        assert len(client.get("/v1/jobs").json()["items"]) == 2


def test_a_change_that_is_wrong_is_named_and_nothing_is_queued(service: Service) -> None:
    with service.client("submit") as client:
        path = f"/v1/jobs/{client.post('/v1/jobs', json=SPEC).json()['id']}/fork"
        found = problem(client.post(path, json={"search": {"lr": {"low": -1, "high": 1, "log": True}}}), 422)
        assert found["errors"][0]["field"].startswith("search.lr")
        problem(client.post(path, content="[1]", headers={"Content-Type": "application/json"}), 422)
        problem(client.post(path, content="{", headers={"Content-Type": "application/json"}), 400)
        problem(client.post(f"/v1/jobs/{MISSING}/fork", json={}), 404)
        assert len(client.get("/v1/jobs").json()["items"]) == 1
    with service.client("read") as client:
        problem(client.post(path, json={}), 403)
