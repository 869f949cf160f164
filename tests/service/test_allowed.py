"""What a service may be used for: whom it listens to, which folders it runs, how many jobs a token may have."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.allowed import is_loopback, require_meant
from service.errors import SettingError
from service.models import Job
from service.settings import Settings
from tests.service.support import SPEC, running_service
from tests.service.test_jobs_api import problem

TRAIN = "def train(config, probe):\n    probe.report(step=1, val_loss=1.0)\n"


def code(folder: Path) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(TRAIN)
    return {
        "workload": {"python": "train.py:train", "folder": str(folder)},
        "search": {"lr": {"low": 1e-4, "high": 1, "log": True}},
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "fidelity": {"axis": "steps", "max": 1, "reports": 1},
        "baseline": {"lr": 0.01},
    }


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_this_machine_is_no_public_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "8.8.8.8", "no-such-host.invalid"])
def test_a_public_address_has_to_be_meant(host: str, tmp_path: Path) -> None:
    settings = Settings(tmp_path, "sqlite:///x.db", host=host)
    with pytest.raises(SettingError, match="--public"):
        require_meant(settings)
    require_meant(replace(settings, is_public=True))


def test_code_is_run_below_the_roots_only_links_followed(sqlite_settings: Settings, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    inside = code(root / "project")
    code(outside)
    (root / "way-out").symlink_to(outside)
    (tmp_path / "way-in").symlink_to(root / "project")
    (tmp_path / "root-like").mkdir()
    settings = replace(sqlite_settings, roots=(root.resolve(),))
    with running_service(settings) as service, service.client("submit") as client:
        for folder in (outside, root / "way-out", root / ".." / "outside", tmp_path / "root-like"):
            code(folder)
            spec = {**inside, "workload": {**inside["workload"], "folder": str(folder)}}
            found = problem(client.post("/v1/jobs", json=spec), 422)
            assert found["errors"][0]["field"] == "workload.folder"
            assert str(root) in found["detail"]
            rules = {"name": "n", "cron": "@daily", "spec": spec}
            assert (
                problem(client.post("/v1/schedules", json=rules), 422)["errors"][0]["field"] == "spec.workload.folder"
            )
        assert client.post("/v1/jobs", json=inside).status_code == 201
        linked = {**inside, "workload": {**inside["workload"], "folder": str(tmp_path / "way-in")}}
        job = client.post("/v1/jobs", json=linked).json()
        assert job["resolved"]["workload"]["folder"] == str((root / "project").resolve())
        assert client.post("/v1/jobs", json=SPEC).status_code == 201


def test_beyond_its_machine_a_service_without_roots_runs_built_ins_only(
    sqlite_settings: Settings, tmp_path: Path
) -> None:
    settings = replace(sqlite_settings, host="0.0.0.0", is_public=True)
    with running_service(settings) as service, service.client("submit") as client:
        found = problem(client.post("/v1/jobs", json=code(tmp_path / "mine")), 422)
        assert "X5TUNE_ROOTS" in found["detail"]
        assert client.post("/v1/jobs", json=SPEC).status_code == 201


def test_a_token_may_have_so_many_jobs_open_and_no_more(settings: Settings) -> None:
    with running_service(replace(settings, max_open_jobs=3)) as service, service.client("submit") as client:
        jobs = [client.post("/v1/jobs", json=SPEC).json()["id"] for _ in range(3)]
        answer = client.post("/v1/jobs", json=SPEC)
        assert "X5TUNE_MAX_OPEN_JOBS" in problem(answer, 429)["detail"]
        assert int(answer.headers["retry-after"]) > 0
        problem(client.post(f"/v1/jobs/{jobs[0]}/fork", json={}), 429)
        with service.client("admin") as other:
            assert other.post("/v1/jobs", json=SPEC).status_code == 201
        client.post(f"/v1/jobs/{jobs[0]}/cancel")
        assert client.post("/v1/jobs", json=SPEC).status_code == 201
        with service.database.read() as session:
            assert session.scalar(sa.select(sa.func.count()).select_from(Job)) == 5


def test_submissions_at_the_same_time_do_not_exceed_the_quota(settings: Settings) -> None:
    with running_service(replace(settings, max_open_jobs=3)) as service, service.client("submit") as client:
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: client.post("/v1/jobs", json=SPEC).status_code, range(24)))
        with service.database.read() as session:
            stored = session.scalar(sa.select(sa.func.count()).select_from(Job))
    assert (answers.count(201), answers.count(429), stored) == (3, 21, 3)
