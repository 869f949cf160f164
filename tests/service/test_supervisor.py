"""`serve` in a process of its own: up, kept up, and down without leaving anything behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from service.children import import_path
from service.errors import PortInUseError
from service.settings import Settings
from service.supervisor import restart_pause_s, serve
from tests.service.support import wait_for

SCRIPT = """
import sys
from service.errors import ServiceError
from service.settings import Settings
from service.supervisor import serve
try:
    serve(Settings.from_environment(), runner={runner})
except ServiceError as error:
    sys.exit(f"{{type(error).__name__}}: {{error}}")
"""


class Serving:
    """A supervisor process that has said that it is ready."""

    def __init__(self, home: Path, process: subprocess.Popen[str], line: str) -> None:
        self.home = home
        self.process = process
        self.line = line
        self.client_file = json.loads((home / "client.json").read_text())
        self.url: str = self.client_file["url"]

    def children(self, module: str) -> list[psutil.Process]:
        """The living children that run this module."""
        found = []
        for each in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if module in each.cmdline():
                    found.append(each)
        return found

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False


def start(home: Path, *, runner: bool = False, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "X5TUNE_HOME": str(home), "X5TUNE_PORT": "0", **import_path(), **variables}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(runner=runner)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=home.parent,
    )


@contextmanager
def serving(home: Path, *, runner: bool = False, **variables: str) -> Iterator[Serving]:
    with start(home, runner=runner, **variables) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, process.communicate(timeout=10)
            yield Serving(home, process, line)
        finally:
            everyone = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.communicate(timeout=45)
            finally:
                for each in everyone:
                    if each.is_running():
                        each.kill()


def gone(processes: list[psutil.Process]) -> bool:
    return all(not each.is_running() or each.status() == psutil.STATUS_ZOMBIE for each in processes)


def test_serve_says_where_it_is_and_leaves_a_working_token_for_this_user_only(tmp_path: Path) -> None:
    with serving(tmp_path / "from nothing") as service:
        assert service.url in service.line
        mode = (service.home / "client.json").stat().st_mode
        assert stat.S_IMODE(mode) == 0o600
        headers = {"Authorization": f"Bearer {service.client_file['token']}"}
        assert httpx.get(f"{service.url}/v1/tokens", headers=headers, trust_env=False).status_code == 200


def test_term_takes_everything_down_with_status_zero(home: Path) -> None:
    with serving(home) as service:
        family = psutil.Process(service.process.pid).children(recursive=True)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(20) == 0
        wait_for(lambda: gone(family), 5)
        assert not service.answers()


def test_term_does_not_wait_for_open_event_streams(home: Path) -> None:
    with serving(home) as service:
        headers = {"Authorization": f"Bearer {service.client_file['token']}"}
        with httpx.Client(base_url=service.url, headers=headers, trust_env=False) as client:
            job_id = client.post("/v1/jobs", json={"workload": "quadratic"}).json()["id"]
            with client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
                next(stream.iter_lines())
                service.process.send_signal(signal.SIGTERM)
                assert service.process.wait(10) == 0


def test_a_killed_api_comes_back_at_the_same_address(home: Path) -> None:
    with serving(home) as service:
        (first,) = service.children("service.api_process")
        first.kill()
        wait_for(lambda: service.children("service.api_process") not in ([], [first]), 20)
        wait_for(service.answers, 20)


def test_a_killed_supervisor_leaves_no_process_behind(home: Path) -> None:
    with serving(home) as service:
        family = psutil.Process(service.process.pid).children(recursive=True)
        assert family
        service.process.kill()
        service.process.wait(10)
        wait_for(lambda: gone(family), 15)


def test_a_restart_keeps_the_token_and_the_jobs(home: Path) -> None:
    with serving(home) as first:
        headers = {"Authorization": f"Bearer {first.client_file['token']}"}
        job = httpx.post(
            f"{first.url}/v1/jobs", json={"workload": "quadratic"}, headers=headers, trust_env=False
        ).json()
    with serving(home) as second:
        assert second.client_file["token"] == first.client_file["token"]
        answer = httpx.get(f"{second.url}/v1/jobs/{job['id']}", headers=headers, trust_env=False)
    assert answer.json()["id"] == job["id"]


def test_a_revoked_token_is_replaced_at_the_next_start(home: Path) -> None:
    with serving(home) as first:
        headers = {"Authorization": f"Bearer {first.client_file['token']}"}
        with httpx.Client(base_url=first.url, headers=headers, trust_env=False) as client:
            for item in client.get("/v1/tokens").json()["items"]:
                client.delete(f"/v1/tokens/{item['id']}")
    with serving(home) as second:
        assert second.client_file["token"] != first.client_file["token"]
        headers = {"Authorization": f"Bearer {second.client_file['token']}"}
        assert httpx.get(f"{second.url}/v1/jobs", headers=headers, trust_env=False).status_code == 200


def test_a_second_serve_on_the_same_home_says_so(home: Path) -> None:
    with serving(home) as service:
        second = start(service.home)
        _, stderr = second.communicate(timeout=30)
    assert second.returncode == 1
    assert "AlreadyServingError" in stderr
    assert str(service.process.pid) in stderr


def test_a_port_in_use_is_a_named_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = Settings(tmp_path, f"sqlite:///{tmp_path}/x5tune.db", port=other.getsockname()[1])
        with pytest.raises(PortInUseError, match="X5TUNE_PORT"):
            serve(settings, runner=False)
    assert not (tmp_path / "client.json").exists()


def test_a_users_folder_with_packages_of_our_names_changes_nothing(tmp_path: Path) -> None:
    for name in ("service", "tuner", "workloads", "alembic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')")
    script = SCRIPT.format(runner=False)
    environment = {**os.environ, "X5TUNE_HOME": str(tmp_path / "home"), "X5TUNE_PORT": "0", **import_path()}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", script], env=environment, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        process.wait(20)
    assert "ready" in line


def test_pauses_between_restarts_grow_and_stay_bounded() -> None:
    pauses = [restart_pause_s(failures) for failures in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] == 30


def test_the_lock_on_a_home_is_free_again_after_a_kill(home: Path) -> None:
    with serving(home) as service:
        family = psutil.Process(service.process.pid).children(recursive=True)
        service.process.kill()
        service.process.wait(10)
        wait_for(lambda: gone(family), 15)
    with serving(home) as again:
        assert again.answers()
