"""Inside x5tune: reports over the socket or into the file, decisions, forks, threads, ranks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import x5tune
from tests.probing.server import CONTINUE, Server, run_script, serving
from x5tune import probing


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `probing` remembers, as in a process that has not reported yet."""
    for name in ("X5TUNE_CONFIG", "X5TUNE_CONTROL", "X5TUNE_REPORT", "RANK"):
        monkeypatch.delenv(name, raising=False)
    state = probing._State()
    monkeypatch.setattr(probing, "_state", state)
    yield
    if state.connection is not None:
        state.connection.close()


def inside(monkeypatch: pytest.MonkeyPatch, server: Server, **config: Any) -> None:
    path = server.folder / "config.json"
    path.write_text(json.dumps({"parameters": {"lr": 1e-5}, "trial": 3, **config}))
    monkeypatch.setenv("X5TUNE_CONFIG", str(path))
    monkeypatch.setenv("X5TUNE_CONTROL", server.path)


def disconnect() -> None:
    """So that the server's thread ends."""
    if probing._state.connection is not None:
        probing._state.connection.close()


def test_the_configuration_is_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"parameters": {"lr": 1e-05, "note": "é"}}', encoding="utf-8")
    monkeypatch.setenv("X5TUNE_CONFIG", str(tmp_path / "config.json"))

    assert x5tune.config() == {"parameters": {"lr": 1e-05, "note": "é"}}


def test_a_script_says_hello_and_reports_over_one_connection() -> None:
    with serving() as server:
        done = run_script(
            "import os, x5tune; print(os.getpid())\n"
            "x5tune.report(step=10, val_loss=0.5, samples=640)\n"
            "x5tune.report(step=20, metrics={'val/acc@5': float('nan')}, val_loss=float('inf'))",
            X5TUNE_CONTROL=server.path,
        )

    assert done.returncode == 0, done.stderr
    assert len(server.connections) == 1
    hello, first, second = server.connections[0]
    assert hello == {"type": "hello", "pid": int(done.stdout)}
    assert first == {"type": "report", "step": 10, "metrics": {"val_loss": 0.5}, "samples": 640.0}
    assert repr(second["metrics"]) == "{'val/acc@5': nan, 'val_loss': inf}"
    assert "samples" not in second, "the slot knows the batch size"


def test_a_stop_ends_an_unprepared_script_quietly_with_status_0() -> None:
    with serving(CONTINUE, {"go": "stop", "reason": "pruned at report 2"}) as server:
        done = run_script(
            "import x5tune\nfor step in range(1, 9):\n"
            "    try:\n        x5tune.report(step=step, val_loss=1)\n"
            "    except Exception: pass\n"
            "    print(step)",
            X5TUNE_CONTROL=server.path,
        )

    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert [report["step"] for report in server.reports] == [1, 2]


def test_a_script_that_swallows_the_stop_meets_it_again_at_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"go": "stop", "reason": "pruned"}) as server:
        inside(monkeypatch, server)
        for step in (1, 2, 3):
            with pytest.raises(x5tune.Stop, match="pruned"):
                x5tune.report(step=step, val_loss=1)
        disconnect()

    assert len(server.reports) == 1


def test_a_stop_without_a_reason_is_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving({"go": "stop"}) as server:
        inside(monkeypatch, server)
        with pytest.raises(x5tune.Stop, match="stopped"):
            x5tune.report(step=1, val_loss=1)
        disconnect()


@pytest.mark.parametrize("reply", [None, "nobody"])
def test_a_tuner_that_is_gone_stops_the_script(monkeypatch: pytest.MonkeyPatch, reply: str | None) -> None:
    with serving(None) as server:
        inside(monkeypatch, server)
        if reply == "nobody":
            monkeypatch.setenv("X5TUNE_CONTROL", str(server.folder / "nobody"))
        with pytest.raises(x5tune.Stop, match="the tuner is gone"):
            x5tune.report(step=1, val_loss=1)


def test_text_as_a_metric_ends_a_script_with_a_traceback_and_is_not_sent() -> None:
    with serving() as server:
        done = run_script("import x5tune; x5tune.report(step=1, val_loss='0.5')", X5TUNE_CONTROL=server.path)

    assert done.returncode == 1
    assert "TypeError: metric 'val_loss' must be a number, not str '0.5'" in done.stderr
    assert server.connections == []


def test_without_a_socket_reports_are_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "report.jsonl"
    done = run_script(
        "import x5tune\nfor step in (1, 2): x5tune.report(step=step, val_loss=step, samples=step * 8)",
        X5TUNE_REPORT=str(path),
    )

    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "metrics": {"val_loss": 1.0}, "samples": 8.0},
        {"step": 2, "metrics": {"val_loss": 2.0}, "samples": 16.0},
    ]


@pytest.mark.parametrize(("rank", "reported"), [("0", 1), ("1", 0), ("7", 0), ("", 1), ("x", 1)])
def test_only_rank_0_reports(rank: str, reported: int) -> None:
    with serving() as server:
        done = run_script("import x5tune; x5tune.report(step=1, val_loss=1)", X5TUNE_CONTROL=server.path, RANK=rank)

    assert done.returncode == 0, done.stderr
    assert len(server.reports) == reported


def test_a_forked_child_opens_its_own_connection_and_leaves_its_parents_alone() -> None:
    with serving() as server:
        done = run_script(
            "import os, x5tune\n"
            "x5tune.report(step=1, val_loss=1)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    x5tune.report(step=2, val_loss=2)\n"
            "    os._exit(0)\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "x5tune.report(step=3, val_loss=3)",
            X5TUNE_CONTROL=server.path,
        )

    assert done.returncode == 0, done.stderr
    assert [[m.get("step") for m in lines] for lines in server.connections] == [[None, 1, 3], [None, 2]]


def test_a_fork_closes_the_childs_copy_of_the_connection() -> None:
    with serving() as server:
        done = run_script(
            "import os, x5tune\n"
            "def sockets():\n"
            "    links = [f'/proc/self/fd/{n}' for n in os.listdir('/proc/self/fd')]\n"
            "    return sum(os.readlink(link).startswith('socket') for link in links if os.path.lexists(link))\n"
            "before = sockets()\n"
            "x5tune.report(step=1, val_loss=1)\n"
            "assert sockets() == before + 1\n"
            "child = os.fork()\n"
            "if child == 0: os._exit(sockets() - before)\n"
            "assert os.waitpid(child, 0)[1] == 0",
            X5TUNE_CONTROL=server.path,
        )

    assert done.returncode == 0, done.stderr


def test_a_fork_during_another_threads_report_can_report() -> None:
    """The lock and the connection are taken at that moment, and nobody in the child would ever give them back."""
    code = """
import os, threading, time, warnings, x5tune
from x5tune import probing
warnings.simplefilter("ignore")  # newer Pythons warn of just this
x5tune.report(step=1, val_loss=1)
started = threading.Event()
def ask(message):
    started.set()
    time.sleep(1)
    return {"go": "continue"}
probing._state.connection.ask = ask
thread = threading.Thread(target=lambda: x5tune.report(step=2, val_loss=2))
thread.start()
started.wait()
child = os.fork()
if child == 0:
    x5tune.report(step=3, val_loss=3)
    os._exit(0)
deadline = time.monotonic() + 20
while not os.waitpid(child, os.WNOHANG)[0]:
    assert time.monotonic() < deadline, "the child hangs"
    time.sleep(0.01)
thread.join()
"""
    with serving() as server:
        done = run_script(code, X5TUNE_CONTROL=server.path)

    assert done.returncode == 0, done.stderr
    assert [report["step"] for report in server.reports] == [1, 3]


def test_threads_report_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        inside(monkeypatch, server)
        threads = [threading.Thread(target=lambda n=n: x5tune.report(step=n, val_loss=n)) for n in range(1, 33)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        disconnect()

    assert sorted(report["step"] for report in server.reports) == list(range(1, 33))
    assert len(server.connections) == 1


def test_an_interrupted_report_does_not_leave_its_answer_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as server:
        inside(monkeypatch, server)
        x5tune.report(step=1, val_loss=1)
        connection = probing._state.connection
        assert connection is not None

        def interrupt(message: object) -> dict[str, Any]:
            raise KeyboardInterrupt

        monkeypatch.setattr(connection, "ask", interrupt)
        with pytest.raises(KeyboardInterrupt):
            x5tune.report(step=2, val_loss=1)
        x5tune.report(step=3, val_loss=1)
        disconnect()

    assert [report["step"] for report in server.reports] == [1, 3]
    assert len(server.connections) == 2
