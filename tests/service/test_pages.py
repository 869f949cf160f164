"""The pages: what a person sees first, with text from outside escaped; and the health checks."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest
import sqlalchemy as sa

from alembic import command
from service import migrate
from service.job_page import sparkline
from service.markup import page, tag, void
from service.store import jobs
from tests.cli.support import finished_job
from tests.service.support import SPEC, Service, add_job


def test_the_first_page_without_jobs_shows_how_to_submit_one(service: Service) -> None:
    with service.client("read") as client:
        answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert "x5tune submit" in answer.text


def test_the_first_page_lists_jobs_and_escapes_their_names(service: Service) -> None:
    with service.client() as client:
        client.post("/v1/jobs", json={**SPEC, "name": '<script>alert("x")</script>'})
        text = client.get("/").text
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "No runner is connected" in text


def test_a_job_has_a_page_with_its_recipes_and_its_trials(service: Service) -> None:
    job_id = finished_job(service.database, name="<b>größer</b>")
    with service.client("read") as client:
        answer = client.get(f"/jobs/{job_id}")
        assert client.get("/jobs/nope").status_code == 404
        assert f'href="/jobs/{job_id}"' in client.get("/").text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'sha256-")
    for text in ("&lt;b&gt;größer&lt;/b&gt;", "recommended", "proven", "ValueError: [red]no[/red] data", "<polyline"):
        assert text in answer.text
    assert "http-equiv" not in answer.text


def test_the_page_of_an_open_job_is_loaded_again(service: Service) -> None:
    job_id = add_job(service.database)
    with service.client("read") as client:
        assert '<meta http-equiv="refresh" content="5">' in client.get(f"/jobs/{job_id}").text
    with service.client(None) as client:
        assert client.get(f"/jobs/{job_id}").status_code == 401


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ([1.0, 0.0], "0.0,2.0 120.0,26.0"),
        ([0.5], "0.0,14.0"),
        ([None, 5.0, None], "0.0,2.0"),
        ([1.0, -3.0], "0.0,2.0 120.0,26.0"),
    ],
)
def test_a_curve_is_drawn_within_its_picture(values: list[float | None], points: str) -> None:
    assert f'points="{points}"' in sparkline(values, 0.0, 1.0)
    assert sparkline([], 0.0, 1.0) == ""


def test_the_login_page_escapes_where_it_leads(shared: Service) -> None:
    with shared.client(None) as client:
        text = client.get("/login", params={"next": '/"><script>x</script>'}).text
    assert "<script>" not in text


def test_markup_escapes_text_and_attributes_and_keeps_markup() -> None:
    assert tag("p", "a<b", tag("b", "c")) == "<p>a&lt;b<b>c</b></p>"
    assert tag("a", "x", href='"', class_="y") == '<a href="&quot;" class="y">x</a>'
    assert void("input", required=True, value=None) == "<input required>"
    assert "<h1>&amp;</h1>" in page("&", [("p", "x")])


def test_the_service_is_ready_only_when_the_database_is_migrated(any_service: Service) -> None:
    with any_service.client(None) as client:
        assert client.get("/healthz").json() == {"status": "ok"}
        assert client.get("/readyz").status_code == 200
        command.downgrade(migrate._config(any_service.settings), "base")
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert "x5tune migrate" in answer.json()["reason"]
        assert client.get("/healthz").status_code == 200


def test_a_database_that_is_gone_is_a_503_not_a_crash(service: Service) -> None:
    add_job(service.database)
    with service.database.write() as session:
        session.execute(sa.text("DROP TABLE x5_events"))
        session.execute(sa.text("ALTER TABLE x5_tokens RENAME TO x5_elsewhere"))
    with service.client("read") as client:
        answer = client.get("/v1/jobs")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("database or disk is full", "is full: free some space"),
        ('could not extend file "base/1": No space left on device', "is full: free some space"),
        ("attempt to write a readonly database", "cannot be written to"),
        ("database is locked", "busy; try again"),
    ],
)
def test_a_database_that_cannot_write_says_why(
    service: Service, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    def refuse(*_: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, sqlite3.OperationalError(said))

    monkeypatch.setattr(jobs, "create", refuse)
    with service.client() as client:
        answer = client.post("/v1/jobs", json=SPEC)
    assert (answer.status_code, told in answer.json()["detail"]) == (503, True)
    assert "retry-after" in answer.headers


def test_a_runner_without_the_worker_comes_as_far_as_saying_so() -> None:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('torch', 'ray', 'scipy', 'sklearn', 'cmaes', 'pynvml'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import service.runner\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_api_imports_nothing_heavy() -> None:
    script = (
        "import sys, service.api, service.api_process, service.supervisor\n"
        "heavy = {'torch', 'ray', 'sklearn', 'pandas', 'scipy', 'optuna', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "status = open('/proc/self/status').read()\n"  # getrusage would count the process that forked this one
        "assert int(status.split('VmHWM:')[1].split()[0]) < 200 * 1024, status\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
