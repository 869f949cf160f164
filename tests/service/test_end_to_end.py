"""Everything together, on a real Ray: a job runs, survives its runner's death, and is handed back in good order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.service.test_supervisor import Serving, gone, serving

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

SPEC: dict[str, Any] = {"workload": "quadratic", "budget": {"trials": 6}, "confirm": {"top": 1, "seeds": 2}}
SLOW: dict[str, Any] = {**SPEC, "search": {"sleep_seconds": 0.02}}


def client(service: Serving) -> httpx.Client:
    headers = {"Authorization": f"Bearer {service.client_file['token']}"}
    return httpx.Client(base_url=service.url, headers=headers, timeout=30, trust_env=False)


def until(api: httpx.Client, job_id: str, **wanted: Any) -> dict[str, Any]:
    """The job once it has these values; fails with the job after a minute and a half."""
    deadline = time.monotonic() + 90
    while True:
        job: dict[str, Any] = api.get(f"/v1/jobs/{job_id}").json()
        if all(job[key] == value for key, value in wanted.items()):
            return job
        assert time.monotonic() < deadline, job
        time.sleep(0.1)


def submit(api: httpx.Client, spec: dict[str, Any]) -> str:
    answer = api.post("/v1/jobs", json=spec)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_job_goes_from_submission_to_a_recipe(home: Path, database: str, request: pytest.FixtureRequest) -> None:
    variables = {}
    if database == "postgres":
        variables["X5TUNE_DATABASE_URL"] = request.getfixturevalue("postgres_settings").database_url
    with serving(home, runner=True, **variables) as service, client(service) as api:
        job = until(api, submit(api, SPEC), state="succeeded")
        recipes = api.get(f"/v1/jobs/{job['id']}/recipes").json()["items"]
        trials = api.get(f"/v1/jobs/{job['id']}/trials").json()["items"]
    assert job["verdict"] == "recommended"
    assert job["progress"] == {"done": 6, "total": 6}
    assert job["study"]["url"]
    assert job["spend"]["device_seconds"] > 0
    assert recipes[0]["rank"] == 1
    assert trials[0]["is_baseline"]
    assert trials[0]["curve"]


def test_a_killed_runner_is_replaced_and_its_job_goes_on_to_exact_totals(home: Path) -> None:
    with serving(home, runner=True, X5TUNE_LEASE_S="2") as service, client(service) as api:
        job_id = submit(api, SLOW)
        until(api, job_id, state="running", phase="search")
        while not api.get(f"/v1/jobs/{job_id}/trials").json()["items"]:
            time.sleep(0.1)
        (runner,) = service.children("service.runner")
        runner.kill()
        job = until(api, job_id, state="succeeded")
        trials = api.get(f"/v1/jobs/{job_id}/trials").json()["items"]
    assert job["attempt"] == 2
    assert job["progress"] == {"done": 6, "total": 6}
    lost = [trial["number"] for trial in trials if trial["outcome"] == "lost"]
    assert {trial["retry_of"] for trial in trials if trial["retry_of"] is not None} == set(lost)
    assert all(trial["state"] == "ended" for trial in trials)


def test_stopping_the_service_hands_the_running_job_back(home: Path) -> None:
    with serving(home, runner=True) as service, client(service) as api:
        job_id = submit(api, SLOW)
        until(api, job_id, state="running", phase="search")
        time.sleep(1)
        family = psutil.Process(service.process.pid).children(recursive=True)
        begun = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(30) == 0
        assert time.monotonic() - begun < 20
        assert gone(family)
    with serving(home) as service, client(service) as api:
        job = api.get(f"/v1/jobs/{job_id}").json()
        assert (job["state"], job["attempt"]) == ("queued", 1)
        assert job["waiting_for"]["code"] == "no_runner"


def test_a_killed_supervisor_leaves_no_probe_and_no_ray_behind(home: Path) -> None:
    with serving(home, runner=True) as service, client(service) as api:
        job_id = submit(api, SLOW)
        until(api, job_id, state="running", phase="search")
        time.sleep(1)
        family = psutil.Process(service.process.pid).children(recursive=True)
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait(10)
        deadline = time.monotonic() + 40
        while not gone(family):
            assert time.monotonic() < deadline, [each for each in family if each.is_running()]
            time.sleep(0.2)
