"""A Ray cluster by address: one whose head dies and comes back, one that is not there, one that does not let us in."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from bench.faults import free_port
from bench.faults_service import ServiceUnderFire
from service import migrate
from service.settings import Settings
from tests.tuner.support import eventually, short_folder

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

SLOW = {
    "workload": "quadratic",
    "search": {"sleep_seconds": 0.05},
    "budget": {"trials": 12},
    "pruner": "none",
    "confirm": {"seeds": 0},
}


@contextlib.contextmanager
def ray_head(folder: Path, port: int, token: str) -> Iterator[subprocess.Popen[bytes]]:
    """`ray start --head` in the foreground, killed at the end."""
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_memory_monitor_refresh_ms": "0",
    }
    command = [
        *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={port}"),
        *("--node-ip-address=127.0.0.1", "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"),
        *(f"--temp-dir={folder}", "--object-store-memory=80000000"),
    ]
    with (folder.parent / "head.log").open("ab") as log:
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        assert eventually(lambda: answers(port), 90)
        yield head
    finally:
        kill_tree(head)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        own = psutil.Process(process.pid)
        for each in [*own.children(recursive=True), own]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def test_a_head_that_dies_and_comes_back_loses_no_job() -> None:
    port, token = free_port(), "a" * 32
    with short_folder() as folder:
        (folder / "r").mkdir()
        cluster = {"X5TUNE_RAY_ADDRESS": f"127.0.0.1:{port}", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        under_fire = ServiceUnderFire(folder, f"sqlite:///{folder / 'x.db'}", free_port(), 10, cluster)
        with contextlib.ExitStack() as stack:
            head = stack.enter_context(ray_head(folder / "r", port, token))
            stack.enter_context(under_fire.running())
            job_id = under_fire.submit(SLOW, "once")
            secret = json.loads((under_fire.home / "client.json").read_text())["token"]
            headers = {"Authorization": f"Bearer {secret}"}

            def job() -> Any:
                answer = httpx.get(f"{under_fire.url}/v1/jobs/{job_id}", headers=headers, trust_env=False, timeout=20)
                return answer.json()

            assert eventually(lambda: job()["progress"]["done"] >= 3, 90)
            kill_tree(head)
            time.sleep(2)
            stack.enter_context(ray_head(folder / "r", port, token))
            assert eventually(lambda: job()["ended_at"] is not None, 150)
            ended = job()

    assert (ended["state"], ended["progress"]["done"]) == ("succeeded", 12), under_fire.tail()
    assert sum(count for outcome, count in ended["outcomes"].items() if outcome != "lost") == 12
    assert under_fire.survivors() == []


def test_a_runner_whose_ray_does_not_start_gives_up_in_time_and_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = run_runner(tmp_path, X5TUNE_RAY_ADDRESS=address, X5TUNE_RAY_START_S="2")

    assert done.returncode == 1
    assert "Ray has not started within 2 s: this runner ends" in done.stderr


@pytest.mark.parametrize("cluster", ["absent", "locked"])
def test_a_cluster_that_cannot_be_joined_is_named_with_the_remedy(cluster: str, tmp_path: Path) -> None:
    port = free_port()
    with contextlib.ExitStack() as stack:
        if cluster == "locked":
            folder = stack.enter_context(short_folder())
            (folder / "r").mkdir()
            stack.enter_context(ray_head(folder / "r", port, "a" * 32))
        address = f"127.0.0.1:{port}"
        done = run_runner(tmp_path, X5TUNE_RAY_ADDRESS=address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="b" * 32)

    assert done.returncode == 1
    assert f"The Ray cluster at 127.0.0.1:{port} (X5TUNE_RAY_ADDRESS) cannot be joined" in done.stderr
    assert "RAY_AUTH_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def run_runner(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A runner of its own, until it ends by itself."""
    migrate.upgrade(Settings(home, f"sqlite:///{home / 'x5tune.db'}"))
    rest = {name: value for name, value in os.environ.items() if not name.startswith(("X5TUNE_", "RAY_"))}
    return subprocess.run(
        [sys.executable, "-m", "x5tune.cli", "runner"],
        env={**rest, "X5TUNE_HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
