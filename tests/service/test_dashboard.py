"""The Optuna dashboard: behind the gate, read-only, started on demand, and never outliving the API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import optuna
import psutil
import pytest

from service.settings import Settings
from tests.service.support import Service, running_service, wait_for


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory, sqlite_template: os.PathLike[str]) -> Iterator[Service]:
    """One service for the module: the dashboard takes seconds to start."""
    import shutil

    home = tmp_path_factory.mktemp("dashboard")
    shutil.copy(sqlite_template, home / "x5tune.db")
    settings = Settings(home, f"sqlite:///{home / 'x5tune.db'}")
    storage = optuna.storages.RDBStorage(settings.database_url)
    optuna.create_study(study_name="a-study", storage=storage)
    storage.scoped_session.remove()
    storage.engine.dispose()
    with running_service(settings) as service:
        yield service


def child(service: Service) -> psutil.Process:
    pid = service.app.state.dashboard.pid
    assert pid is not None
    return psutil.Process(pid)


def open_page(service: Service, path: str = "/dashboard") -> httpx.Response:
    found: list[httpx.Response] = []

    def is_up() -> bool:
        with service.client("read") as client:
            found[:] = [client.get(path, follow_redirects=True)]
        return found[0].status_code != 503

    wait_for(is_up, 60)
    return found[0]


def test_the_page_its_scripts_and_its_data_are_served(dashboard: Service) -> None:
    page = open_page(dashboard)
    assert page.status_code == 200
    assert "Optuna Dashboard" in page.text
    assert page.headers["x-frame-options"] == "SAMEORIGIN"
    with dashboard.client("read") as client:
        script = page.text.split('script defer src="')[1].split('"')[0]
        assert client.get(script).status_code == 200
        studies = client.get("/api/studies").json()["study_summaries"]
        assert [study["study_name"] for study in studies] == ["a-study"]
        assert client.get(f"/api/studies/{studies[0]['study_id']}").status_code == 200
        assert client.get(f"/dashboard/studies/{studies[0]['study_id']}").status_code == 200
        assert client.get("/csv/1").status_code == 200
        assert client.head("/dashboard").status_code == 200


def test_a_ranged_or_cached_request_is_passed_on(dashboard: Service) -> None:
    page = open_page(dashboard)
    with dashboard.client("read") as client:
        again = client.get("/dashboard", headers={"If-None-Match": page.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed_through_it(dashboard: Service, method: str) -> None:
    open_page(dashboard)
    with dashboard.client("admin") as client:
        for path in ("/api/studies/1", "/api/studies", "/dashboard", "/static/x", "/csv/1"):
            assert client.request(method, path).status_code == 405, path
        assert len(client.get("/api/studies").json()["study_summaries"]) == 1


def test_another_local_user_gets_nothing_from_its_port(dashboard: Service) -> None:
    open_page(dashboard)
    connection = next(each for each in child(dashboard).net_connections("tcp") if each.status == psutil.CONN_LISTEN)
    assert connection.laddr.ip == "127.0.0.1"
    answer = httpx.get(f"http://127.0.0.1:{connection.laddr.port}/api/studies", trust_env=False)
    assert answer.status_code == 403
    assert b"a-study" not in answer.content


def test_the_secret_is_neither_in_arguments_nor_in_the_environment(dashboard: Service) -> None:
    open_page(dashboard)
    process = child(dashboard)
    secret = dashboard.app.state.dashboard._secret
    assert secret not in " ".join(process.cmdline())
    assert secret not in " ".join(process.environ().values())


def test_it_is_started_again_when_it_has_died(dashboard: Service) -> None:
    open_page(dashboard)
    first = child(dashboard)
    first.kill()
    wait_for(lambda: not first.is_running() or first.status() == psutil.STATUS_ZOMBIE)
    assert open_page(dashboard).status_code == 200
    assert child(dashboard).pid != first.pid


def test_the_child_ends_when_its_parent_is_killed() -> None:
    script = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'service.dashboard_child'], stdin=subprocess.PIPE)\n"
        'child.stdin.write(b\'{"url": "sqlite:////nonexistent/x.db", "secret": "s"}\\n\'); child.stdin.flush()\n'
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(parent.pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, 10)


def test_without_the_package_a_page_says_what_to_install(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.dashboard.importlib.util.find_spec", lambda name: None)
    with service.client("read") as client:
        page = client.get("/dashboard", headers={"Accept": "text/html"})
        data = client.get("/api/studies")
    assert page.status_code == 503
    assert "pip install" in page.text
    assert data.headers["content-type"] == "application/problem+json"


def test_a_slow_start_shows_a_page_that_tries_again(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.dashboard.PATIENCE_S", 0.05)
    with service.client("read") as client:
        page = client.get("/dashboard", headers={"Accept": "text/html"})
    assert page.status_code == 503
    assert "starting" in page.text
    assert page.headers["refresh"] == "2"
