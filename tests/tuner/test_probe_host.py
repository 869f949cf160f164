"""The host of probes, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tuner.support import (
    eventually,
    first_report,
    probe_config,
    probe_host,
    processes_in,
    run_probe,
    short_folder,
)
from tuner import probe_process
from tuner.probe_process import Exited, ProbeHost, ProbeStartError, isolation_prefix, probe_environment

THREAD = "\nimport threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
GRANDCHILD = """
import subprocess
subprocess.Popen(["setsid", "sleep", "3600"])
probe.report(step=1, val_loss=1.0)
subprocess.Popen(["setsid", "sh", "-c", "sleep 3600 & sleep 3600"])
probe.report(step=2, val_loss=1.0)
"""


@pytest.fixture(params=["namespace", "fallback"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.setattr(probe_process, "isolation_prefix", tuple)
    elif not isolation_prefix():
        pytest.skip("the kernel refuses PID namespaces here")
    return str(request.param)


@contextlib.contextmanager
def kept_folder(host: ProbeHost) -> Iterator[Path]:
    """The host's folder; nobody may work in it once the host is closed."""
    yield host._folder
    host.close()
    assert not host._folder.exists()
    assert eventually(lambda: processes_in(host._folder) == [])


def parent_of(host: ProbeHost) -> psutil.Process:
    """The warm parent itself, below the commands that isolate it."""
    process = psutil.Process(host._parent.pid)
    while "warm_parent" not in process.cmdline()[-2]:
        (process,) = process.children()
    return process


def code(text: str, **changes: object) -> dict[str, object]:
    return probe_config(code=text, **changes)


def test_a_probe_reports_and_ends(isolation: str) -> None:
    with probe_host() as host, kept_folder(host):
        reports, exited = run_probe(host, probe_config())

    assert [report["step"] for report in reports] == [2, 4, 6, 8, 10]
    assert exited.status == 0
    assert exited.said == {"type": "end", "outcome": "ok", "reason": None}
    assert exited.peak_memory_bytes is not None
    assert exited.peak_memory_bytes > 1 << 20


def test_a_probe_stands_still_until_it_is_answered() -> None:
    with probe_host() as host:
        host.start(probe_config(), {})
        first_report(host)

        assert host.wait(0.3) is None
        host.answer("continue")
        assert first_report(host).message["step"] == 4


def test_a_waiting_probe_that_is_stopped_ends_at_once_and_says_so(isolation: str) -> None:
    with probe_host() as host:
        host.start(probe_config(), {})
        first_report(host)
        began = time.monotonic()
        exited = host.end("pruned")

        assert exited is not None
        assert exited.said == {"type": "end", "outcome": "stopped", "reason": "pruned"}
        assert time.monotonic() - began < 1.0
        assert run_probe(host, probe_config())[1].status == 0


def test_a_probe_that_ignores_term_and_stop_is_killed(isolation: str) -> None:
    stubborn = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        probe.report(step=1, val_loss=1.0)
    except BaseException:
        time.sleep(0.01)
"""
    with probe_host("scripted") as host, kept_folder(host):
        host.start(code(stubborn), {})
        first_report(host)
        exited = host.end("enough", grace_s=0.3)

        assert exited is not None
        assert exited.status == -signal.SIGKILL
        assert host.is_alive


def test_a_probe_that_hangs_is_ended_by_term(isolation: str) -> None:
    with probe_host() as host:
        host.start(probe_config(hang_at=1), {})
        assert host.wait(0.5) is None
        exited = host.end("silent", grace_s=0.3)

        assert exited is not None
        assert exited.status == -signal.SIGTERM


def test_a_killed_probe_leaves_the_slot_usable(isolation: str) -> None:
    with probe_host() as host:
        _, killed = run_probe(host, probe_config(kill_at=2))
        reports, exited = run_probe(host, probe_config())

    assert (killed.status, killed.said) == (-signal.SIGKILL, None)
    assert (len(reports), exited.status) == (5, 0)


def test_the_pid_that_a_probe_says_is_the_one_outside_its_namespace(isolation: str) -> None:
    with probe_host() as host, kept_folder(host) as folder:
        host.start(probe_config(), {})
        first_report(host)

        assert host.pid in {process.pid for process in processes_in(folder)}
        os.kill(host.pid or 0, signal.SIGKILL)
        exited = host.wait(5.0)
        assert isinstance(exited, Exited)
        assert exited.status == -signal.SIGKILL


def test_when_the_warm_parent_is_killed_the_probe_goes_too_and_its_end_is_unknown(isolation: str) -> None:
    with probe_host() as host, kept_folder(host) as folder:
        host.start(probe_config(hang_at=2), {})
        first_report(host)
        host.answer("continue")
        parent_of(host).kill()
        exited = host.wait(5.0)

        assert isinstance(exited, Exited)
        assert (exited.status, exited.said) == (None, None)
        assert not host.is_alive
        assert eventually(lambda: processes_in(folder) == [])


def test_a_warm_parent_killed_while_it_loads_is_named(isolation: str) -> None:
    with probe_host(at_start="\nimport time; time.sleep(3600)\n") as host:
        assert not host.ensure_ready(0.2)
        assert eventually(lambda: bool(parent_of(host)))
        parent_of(host).kill()
        began = time.monotonic()
        with pytest.raises(ProbeStartError, match="the warm parent ended"):
            host.ensure_ready(20.0)

        assert time.monotonic() - began < 5.0
        assert not host.is_alive


def test_a_workload_that_cannot_be_imported_is_told_with_its_traceback_and_never_waited_for_again() -> None:
    with probe_host("no-such-workload") as host:
        with pytest.raises(ProbeStartError, match="There is no built-in workload 'no-such-workload'") as raised:
            host.start(probe_config(), {})

        assert "UnknownWorkload" in raised.value.traceback
        assert not host.is_alive


def test_an_import_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_process, "START_TIMEOUT_S", 0.5)
    with probe_host(at_start="\nimport time; time.sleep(3600)\n") as host:
        with pytest.raises(ProbeStartError, match="not imported within"):
            while not host.ensure_ready(0.1):
                pass
        assert not host.is_alive


def test_a_grandchild_in_a_session_of_its_own_is_gone_when_its_probe_has_ended(isolation: str) -> None:
    with probe_host("scripted") as host, kept_folder(host) as folder:
        host.start(code(GRANDCHILD), {})
        first_report(host)
        assert eventually(lambda: any(p.name() == "sleep" for p in processes_in(folder)))
        host.answer("continue")
        first_report(host)
        host.answer("continue")
        assert isinstance(host.wait(10.0), Exited)

        assert [p for p in processes_in(folder) if p.name() in ("sleep", "sh", "setsid")] == []


def test_nothing_is_left_when_the_process_of_the_slot_is_killed(isolation: str) -> None:
    prefix = "" if isolation == "namespace" else "probe_process.isolation_prefix = tuple"
    with short_folder() as folder:
        script = f"""
import pathlib, time
from tests.tuner.support import SCRIPTED, probe_config
from tuner import probe_process
{prefix}
folder = pathlib.Path({str(folder)!r})
(folder / "sitecustomize.py").write_text(SCRIPTED)
host = probe_process.ProbeHost({{"workload": "scripted"}}, folder / "h", {{"PYTHONPATH": str(folder)}}, 1.0)
host.start(probe_config(code={GRANDCHILD!r}), {{}})
assert host.wait(20.0) is not None
print("waiting", flush=True)
time.sleep(3600)
"""
        owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        with owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"waiting\n"
            assert len(processes_in(folder)) >= 3
            owner.kill()

        assert eventually(lambda: processes_in(folder) == [])


def test_a_gigabyte_without_a_newline_stays_out_of_our_memory() -> None:
    before = psutil.Process().memory_info().rss
    with probe_host() as host:
        _, exited = run_probe(host, probe_config(print_bytes=205 << 20), timeout_s=100)
    grown = psutil.Process().memory_info().rss - before

    assert exited.status == 0
    assert len(exited.output) < 100_000
    assert "bytes left out" in exited.output
    assert grown < 32 << 20


def test_what_a_probe_prints_is_kept_from_both_streams_and_from_its_children() -> None:
    text = """
import os, sys
print("to stdout")
print("to stderr", file=sys.stderr)
os.system("echo from a child")
os.write(1, b"raw")
"""
    with probe_host("scripted") as host:
        _, exited = run_probe(host, code(text))

    assert exited.output == "to stdout\nto stderr\nfrom a child\nraw"


def test_a_crash_leaves_its_traceback_in_the_output() -> None:
    with probe_host() as host:
        _, exited = run_probe(host, probe_config(crash_at=1))

    assert exited.said is not None
    assert exited.said["outcome"] == "crashed"
    assert exited.said["reason"] == "RuntimeError: crash_at: report 1"
    assert "Traceback" in exited.output


def test_a_parent_with_a_second_thread_starts_fresh_processes_with_equal_results() -> None:
    with probe_host() as forking, probe_host(at_start=THREAD) as threaded:
        forked = run_probe(forking, probe_config())
        fresh = run_probe(threaded, probe_config())
        again = run_probe(threaded, probe_config())

    assert fresh[0] == forked[0] == again[0]
    assert fresh[1].status == 0


def test_a_fresh_process_shows_no_secret_in_its_command_line() -> None:
    text = "import os; probe.report(step=1, val_loss=float(os.environ['HF_TOKEN'] == 's3cret'))"
    with probe_host("scripted", at_start=THREAD) as host, kept_folder(host) as folder:
        host.start(code(text), {"HF_TOKEN": "s3cret"})
        report = first_report(host)

        assert report.message["metrics"] == {"val_loss": 1.0}
        assert not any("s3cret" in argument for process in processes_in(folder) for argument in process.cmdline())


def test_two_hundred_forks_give_one_result() -> None:
    with probe_host() as host:
        results = {json.dumps(run_probe(host, probe_config())[0]) for _ in range(200)}

    assert len(results) == 1


def test_a_probe_sees_an_allowed_part_of_our_environment_and_its_own() -> None:
    outer = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "1",
        "LC_ALL": "C",
        "X5TUNE_DATA": "/data",
        "X5TUNE_DATABASE_URL": "postgresql://user:password@host/db",
        "X5TUNE_TOKEN": "token",
        "AWS_SECRET_ACCESS_KEY": "key",
        "PYTHONPATH": "/ours",
        "RAY_ADDRESS": "x",
    }

    seen = probe_environment(outer, 2.0)

    assert {name for name in outer if name in seen} == {"PATH", "CUDA_VISIBLE_DEVICES", "LC_ALL", "X5TUNE_DATA"}
    assert seen["OMP_NUM_THREADS"] == "2"


def test_the_services_secrets_do_not_reach_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("X5TUNE_DATABASE_URL", "X5TUNE_TOKEN", "GITHUB_TOKEN"):
        monkeypatch.setenv(name, "secret")
    with probe_host("scripted", MINE="yes") as host:
        _, exited = run_probe(host, code("import os; print('\\n'.join(sorted(os.environ)))"))

    assert "MINE" in exited.output
    assert "X5TUNE_CONFIG" in exited.output
    assert "TOKEN" not in exited.output
    assert "DATABASE" not in exited.output


def test_an_environment_larger_than_a_socket_buffer_arrives() -> None:
    large = {f"LARGE_{number}": "x" * 60_000 for number in range(20)}
    with probe_host("scripted") as host:
        host.start(code("import os; print(sum(map(len, os.environ.values())))"), large)
        exited = host.wait(20.0)

    assert isinstance(exited, Exited)
    assert int(exited.output) > 1_200_000


def test_a_folder_left_by_a_killed_process_with_our_pid_is_no_obstacle() -> None:
    with short_folder() as folder:
        with socket.socket(socket.AF_UNIX) as left:
            (folder / "h").mkdir()
            left.bind(str(folder / "h" / "c"))
        host = ProbeHost({"workload": "quadratic"}, folder / "h", {}, 1.0)
        try:
            assert run_probe(host, probe_config())[1].status == 0
        finally:
            host.close()


def test_closing_a_host_twice_or_before_it_has_loaded_is_fine() -> None:
    with probe_host() as host, kept_folder(host):
        host.close()
        host.close()


def test_a_probe_that_closes_its_control_socket_can_still_be_ended() -> None:
    with probe_host("scripted") as host:
        host.start(code("import time; probe._connection.shutdown(2); time.sleep(3600)"), {})
        assert host.wait(0.5) is None
        exited = host.end("silent", grace_s=0.2)

        assert exited is not None
        assert exited.status == -signal.SIGTERM


@pytest.mark.parametrize(
    "garbage",
    [
        "b'no json\\n'",
        "b'\\xff\\xfe\\n'",
        "b'[1, 2]\\n'",
        "b'7\\n'",
        'b\'{"type": "report"}\\n\'',
        "b'[' * 100000 + b'\\n'",
        "b'x' * (20 << 20)",
    ],
)
def test_garbage_comes_out_as_a_report_that_nobody_can_read(garbage: str) -> None:
    with probe_host("scripted") as host:
        host.start(code(f"import time; probe._connection.sendall({garbage}); time.sleep(3600)"), {})

        assert "metrics" not in first_report(host).message
        assert host.end("garbage", grace_s=0.2) is not None
        assert run_probe(host, code("probe.report(step=1, val_loss=1.0)"))[1].status == 0


def test_a_report_line_of_5_megabytes_arrives_whole() -> None:
    with probe_host("scripted") as host:
        reports, exited = run_probe(
            host, code("probe.report(step=1, **{f'metric_number_{n}': 0.1 for n in range(200_000)})")
        )

    assert len(reports[0]["metrics"]) == 200_000
    assert exited.status == 0


def test_two_reports_in_one_packet_are_both_delivered_in_order() -> None:
    line = 'b\'{"type": "report", "step": %d, "metrics": {}}\\n\''
    with probe_host("scripted") as host:
        reports, exited = run_probe(host, code(f"probe._connection.sendall({line % 1} + {line % 2})"))

    assert [report["step"] for report in reports] == [1, 2]
    assert exited.said is not None


def test_a_report_made_just_before_death_is_not_lost() -> None:
    last = 'b\'{"type": "report", "step": 9, "metrics": {}}\\n\''
    with probe_host("scripted") as host:
        host.start(code(f"import os; probe._connection.sendall({last}); os.kill(os.getpid(), 9)"), {})
        time.sleep(0.3)
        report = first_report(host)
        exited = host.wait(5.0)

    assert report.message["step"] == 9
    assert isinstance(exited, Exited)
    assert exited.status == -signal.SIGKILL


def test_what_is_said_after_the_end_is_not_heard() -> None:
    line = 'b\'{"type": "report", "step": 9, "metrics": {}}\\n\''
    with probe_host("scripted") as host:
        reports, exited = run_probe(
            host,
            code(f"probe.send({{'type': 'end', 'outcome': 'ok', 'reason': None}}); probe._connection.sendall({line})"),
        )

    assert reports == []
    assert exited.status == 0


def test_connections_left_in_the_queue_do_not_speak_for_the_next_probe() -> None:
    lingering = """
import socket
for _ in range(4):
    extra = socket.socket(socket.AF_UNIX)
    extra.connect(__import__("os").environ["X5TUNE_CONTROL"])
    extra.sendall(b'{"type": "report", "step": 77, "metrics": {}}\\n')
"""
    with probe_host("scripted") as host:
        host.start(code(lingering), {})
        time.sleep(0.3)
        assert isinstance(host.wait(5.0), Exited)
        reports, _ = run_probe(host, code("probe.report(step=1, val_loss=1.0)"))

    assert [report["step"] for report in reports] == [1]


def test_text_for_a_metric_crashes_with_the_metrics_name() -> None:
    with probe_host("scripted") as host:
        _, exited = run_probe(host, code("probe.report(step=1, val_loss='good')"))

    assert exited.said is not None
    assert exited.said["reason"] == "TypeError: metric 'val_loss' must be a number, not str 'good'"


@pytest.mark.parametrize("position", ["float('nan')", "float('inf')"])
def test_a_position_that_is_no_number_crashes_with_its_name(position: str) -> None:
    with probe_host("scripted") as host:
        _, exited = run_probe(host, code(f"probe.report(step=1, val_loss=1.0, samples={position})"))

    assert exited.said is not None
    assert "'samples' says how far the run is and must be finite" in exited.said["reason"]


def test_names_and_reasons_in_any_script_survive() -> None:
    with probe_host("scripted") as host:
        reports, exited = run_probe(
            host, code("probe.report(step=1, größe_损失=1.0); raise ValueError('\\udcff ∞ größe')")
        )

    assert reports[0]["metrics"] == {"größe_损失": 1.0}
    assert exited.said is not None
    assert exited.said["reason"] == "ValueError: \udcff ∞ größe"


@pytest.mark.parametrize(
    ("fidelity", "steps"),
    [
        ({"axis": "samples", "max": 640, "reports": 1}, [10]),
        ({"axis": "samples", "max": 3, "reports": 20}, [1]),
        ({"axis": "steps", "max": 4, "reports": 2}, [2, 4]),
    ],
)
def test_the_smallest_horizons_have_their_last_report(fidelity: dict[str, object], steps: list[int]) -> None:
    with probe_host() as host:
        reports, exited = run_probe(host, probe_config(fidelity=fidelity))

    assert [report["step"] for report in reports] == steps
    assert exited.status == 0


def test_the_seconds_axis_ends_by_the_clock() -> None:
    fidelity = {"axis": "seconds", "max": 0.4, "reports": 4}
    with probe_host() as host:
        reports, exited = run_probe(host, probe_config(fidelity=fidelity))

    assert 4 <= len(reports) <= 5
    assert reports[-1]["seconds"] >= 0.4
    assert 0.4 <= exited.seconds < 3.0


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else")
def test_an_ordinary_user_gets_the_same_without_namespaces() -> None:
    script = """
import pathlib, sys
from tests.tuner.support import probe_config, run_probe
from tuner.probe_process import ProbeHost, isolation_prefix
host = ProbeHost({"workload": "quadratic"}, pathlib.Path(sys.argv[1]) / "h", {}, 1.0)
reports, exited = run_probe(host, probe_config())
killed = run_probe(host, probe_config(kill_at=1))[1]
host.close()
print(isolation_prefix(), len(reports), exited.status, killed.status)
"""
    with short_folder() as folder:
        os.chown(folder, 65534, 65534)
        # An interpreter of root's own has to be readable; whoever may read everything is an ordinary user in all else.
        read_all = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]
        become = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *read_all]
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [*become, sys.executable, "-c", script, str(folder)],
            cwd=root,
            env={"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

        assert done.stdout == "() 5 0 -9\n", done.stderr
        assert processes_in(folder) == []
