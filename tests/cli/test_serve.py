"""`serve`, `runner` and `migrate`: the whole service as a process."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import Cli
from x5tune import Client


@pytest.fixture
def home(lonely_cli: Cli, sqlite_template: Path) -> Path:
    """A home whose database is ready: creating its tables would take seconds."""
    shutil.copy(sqlite_template, lonely_cli.folder / "x5tune.db")
    return lonely_cli.folder


@contextlib.contextmanager
def serving(cli: Cli, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A service and its address."""
    with cli.running("serve", "--port", "0", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"ready at (http://[0-9.:]+)", line)
        assert found, (line, process.communicate(timeout=10))
        yield process, found[1]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def test_serve_leaves_what_the_other_commands_need_and_ends_on_ctrl_c(lonely_cli: Cli, home: Path) -> None:
    with serving(lonely_cli, "--no-runner") as (process, url):
        left = home / "client.json"
        assert json.loads(left.read_text())["url"] == url
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
        submitted = lonely_cli("submit", "-w", "quadratic", "--json")
        assert submitted.code == 0, submitted.err
        second = lonely_cli("serve")
        assert (second.code, "Another `x5tune serve`" in second.err) == (1, True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in said
    assert lonely_cli("jobs").code == 3


def test_what_cannot_be_served_is_said(lonely_cli: Cli) -> None:
    cases = {
        ("serve", "--home", "/proc/none"): (2, "X5TUNE_HOME"),
        ("serve", "--database-url", "mysql://x"): (2, "only sqlite and postgresql"),
        ("migrate", "--database-url", "postgresql://127.0.0.1:1/x"): (1, "The database cannot be used"),
        ("runner",): (1, "run `x5tune migrate`"),
        ("serve", "--port", "99999"): (2, "X5TUNE_PORT"),
    }
    for arguments, (code, said) in cases.items():
        done = lonely_cli(*arguments)
        assert (done.code, done.out) == (code, ""), arguments
        assert done.err.startswith("Error: ")
        assert said in done.err


def test_migrating_twice_is_once(lonely_cli: Cli) -> None:
    first, second = lonely_cli("migrate"), lonely_cli("migrate")
    assert (first.code, second.code) == (0, 0), first.err
    assert first.out == second.out
    assert first.out.startswith("The database is at revision ")


@pytest.mark.ray
def test_a_first_look_from_serve_to_recipe(lonely_cli: Cli, home: Path) -> None:
    (home / "job.yaml").write_text("workload: quadratic\nbudget: {trials: 12}\nconfirm: {top: 1, seeds: 3}\n")
    with serving(lonely_cli) as (_, url):
        done = lonely_cli("submit", "job.yaml", "--watch")
        assert done.code == 0, done.out + done.err
        assert "confirmation 6 of 6" in done.out
        assert "x5tune export" in done.out
        exported = lonely_cli("export", "last", "--format", "args")
        assert exported.out.startswith("--lr ")
        with Client(url, json.loads((home / "client.json").read_text())["token"]) as client:
            assert client.job(next(client.jobs())["id"])["progress"] == {"done": 12, "total": 12}
