"""What one rank prints, passed on line by line, in a process of its own as torchrun starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from workloads import relay

RELAY = [sys.executable, "-I", relay.__file__]


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What the slot listens on, by a path that is short enough."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("c")
        listener.listen()
        listener.settimeout(10)
        yield listener


def run(text: str, rank: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*RELAY, sys.executable, "-c", text]
    inner = {**os.environ, "RANK": str(rank), "X5TUNE_REPORT": "reports", **environment}
    return subprocess.run(command, env=inner, capture_output=True, text=True, timeout=30, check=False)


def heard(control: socket.socket) -> dict[str, Any]:
    connection, _ = control.accept()
    with connection, connection.makefile() as lines:
        message: dict[str, Any] = json.loads(lines.readline())
        return message


@pytest.mark.parametrize(("rank", "prefix"), [(0, ""), (1, "[rank 1] "), (12, "[rank 12] ")])
def test_the_lines_of_all_but_the_lead_begin_with_their_rank(rank: int, prefix: str) -> None:
    done = run("import sys; print('one'); sys.stdout.flush(); print('two', end='', file=sys.stderr)", rank)

    assert done.stdout == f"{prefix}one\n{prefix}two\n"
    assert done.returncode == 0


def test_a_flood_without_a_line_end_goes_through_in_pieces() -> None:
    done = run("print('x' * 1_000_000)")

    assert done.stdout.replace("[rank 1] ", "").replace("\n", "") == "x" * 1_000_000


def test_all_but_the_lead_report_to_nobody() -> None:
    text = "import os; print(os.environ['X5TUNE_REPORT'])"

    assert run(text, 0).stdout == "reports\n"
    assert run(text, 1).stdout == f"[rank 1] {os.devnull}\n"


def test_what_a_rank_has_started_and_left_does_not_keep_it() -> None:
    began = time.monotonic()
    done = run("import subprocess; subprocess.Popen(['sleep', '20']); print('done')")

    assert done.stdout == "[rank 1] done\n"
    assert time.monotonic() - began < 15


def test_a_failure_is_told_with_its_last_line_and_when_it_began(control: socket.socket) -> None:
    before = time.monotonic()
    done = run("raise ValueError('bad rows')", X5TUNE_CONTROL="c")
    message = heard(control)

    assert done.returncode == 1
    assert before < message.pop("at") < time.monotonic()
    assert message == {"type": "end", "rank": 1, "status": 1, "last": "ValueError: bad rows"}


def test_a_death_by_signal_comes_before_whatever_follows_from_it(control: socket.socket) -> None:
    done = run("import os; os.kill(os.getpid(), 11)", X5TUNE_CONTROL="c")

    assert done.returncode == 128 + signal.SIGSEGV
    assert heard(control) == {"type": "end", "rank": 1, "status": -signal.SIGSEGV, "last": "", "at": 0.0}


def test_one_that_ignores_term_is_killed_after_a_grace_and_nothing_is_told(control: socket.socket) -> None:
    text = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('here', flush=True)\nwhile True: time.sleep(1)"
    )
    environment = {**os.environ, "RANK": "0", "X5TUNE_CONTROL": "c"}
    with subprocess.Popen([*RELAY, sys.executable, "-c", text], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=20) == 128 + signal.SIGKILL
    control.settimeout(0.2)
    with pytest.raises(TimeoutError):
        control.accept()


def test_a_program_that_is_not_there_is_named() -> None:
    done = subprocess.run([*RELAY, "python2.6"], capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == 127
    assert done.stderr == "x5tune: cannot run 'python2.6': No such file or directory\n"
