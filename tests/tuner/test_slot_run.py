"""One assignment in one slot: from raw reports to what the coordinator sees."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import eventually, probe_config, probe_host, short_folder, slot_setup
from tuner.assignment import Assignment, SlotReport, SlotSetup
from tuner.probe_process import ProbeHost
from tuner.records import Outcome
from tuner.slot import STEP_S, Slot, SlotRun, signal_name


def slot_run(
    host: ProbeHost, config: dict[str, Any], setup: SlotSetup | None = None, *, judged: bool = True
) -> SlotRun:
    return SlotRun(host, setup or slot_setup(), Assignment("t0", config, judged))


def ended(run: SlotRun, timeout_s: float = 20.0) -> tuple[list[SlotReport], SlotReport]:
    """All reports of a run that may always go on, and the last one."""
    reports = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        reports.append(run.step())
        if reports[-1].end is not None:
            return reports, reports[-1]
    raise AssertionError("the run has not ended")


def end_of(report: SlotReport) -> tuple[Outcome, str | None]:
    assert report.end is not None
    return report.end.outcome, report.end.reason


def code(text: str, **changes: Any) -> dict[str, Any]:
    return probe_config(code=text, **changes)


def test_each_due_point_is_a_step_and_then_the_end() -> None:
    with probe_host() as host:
        reports, last = ended(slot_run(host, probe_config()))

    assert [point.index for report in reports for point in report.points] == [1, 2, 3, 4, 5]
    assert end_of(last) == (Outcome.OK, None)
    assert last.end is not None
    assert last.end.value == [point.value for report in reports for point in report.points][-1]
    assert (last.position, last.probe.exit_status) == (640.0, 0)


def test_a_run_that_nobody_judges_goes_on_by_itself_and_still_steps_in_time() -> None:
    with probe_host() as host:
        run = slot_run(host, probe_config(sleep_seconds=0.45), judged=False)
        host.ensure_ready()
        began = time.monotonic()
        first = run.step()
        took = time.monotonic() - began
        _, last = ended(run)

    assert took < STEP_S + 0.6
    assert (first.end, first.points) == (None, ())
    assert end_of(last) == (Outcome.OK, None)


def test_reports_between_due_points_do_not_keep_a_step_from_returning() -> None:
    chatter = "import time\nfor n in range(1, 10**6): probe.report(step=n, val_loss=1.0, samples=1.0)"
    with probe_host("scripted") as host:
        run = slot_run(host, code(chatter), slot_setup(probe_seconds=2.0))
        host.ensure_ready()
        began = time.monotonic()
        first = run.step()
        took = time.monotonic() - began
        _, last = ended(run)

    assert first.end is None
    assert took < STEP_S + 0.5
    assert end_of(last) == (Outcome.TIMED_OUT, "ran longer than limits.probe_seconds = 2")


def test_a_workload_that_is_slow_to_import_does_not_keep_a_step_from_returning() -> None:
    with probe_host(at_start="\nimport time; time.sleep(2)\n") as host:
        run = slot_run(host, probe_config(), slot_setup(silence_seconds=1.0))
        began = time.monotonic()
        first = run.step()
        took = time.monotonic() - began
        _, last = ended(run)

    assert first.end is None
    assert took < STEP_S + 0.5
    assert end_of(last) == (Outcome.OK, None)


def test_a_silent_probe_is_timed_out() -> None:
    with probe_host() as host:
        _, last = ended(slot_run(host, probe_config(hang_at=2), slot_setup(silence_seconds=0.5)))

    assert end_of(last) == (Outcome.TIMED_OUT, "no report for limits.silence_seconds = 0.5")
    assert last.probe.exit_status == -signal.SIGTERM


def test_the_time_that_a_probe_is_kept_waiting_is_not_its_silence() -> None:
    with probe_host() as host:
        run = slot_run(host, probe_config(), slot_setup(silence_seconds=0.5))
        run.step()
        time.sleep(0.8)
        _, last = ended(run)

    assert end_of(last) == (Outcome.OK, None)


def test_nan_ends_a_probe_as_diverged_with_its_point() -> None:
    with probe_host() as host:
        _, last = ended(slot_run(host, probe_config(nan_at=3)))

    assert end_of(last) == (Outcome.DIVERGED, "val_loss is nan at report 3 (step 6)")
    assert [point.value.kind for point in last.points] == ["nan"]


@pytest.mark.parametrize(
    ("misbehaviour", "outcome", "reason"),
    [
        ({"crash_at": 2}, Outcome.CRASHED, "RuntimeError: crash_at: report 2"),
        ({"kill_at": 2}, Outcome.OUT_OF_MEMORY, "killed (SIGKILL)"),
        ({"lr": 1.0}, Outcome.DIVERGED, "val_loss is +inf at report 1 (step 2)"),
    ],
)
def test_each_misbehaviour_has_its_outcome(misbehaviour: dict[str, Any], outcome: Outcome, reason: str) -> None:
    with probe_host() as host:
        _, last = ended(
            slot_run(host, probe_config(**{"fidelity": {"axis": "samples", "max": 640, "reports": 2}, **misbehaviour}))
        )

    assert end_of(last)[0] == outcome
    assert reason in (end_of(last)[1] or "")


@pytest.mark.parametrize(
    ("text", "outcome", "reason"),
    [
        ("pass", Outcome.NO_METRIC, "never reported 'val_loss'; it reported: none at all"),
        ("probe.report(step=9, loss=1.0)", Outcome.NO_METRIC, "never reported 'val_loss'; it reported: loss"),
        ("raise MemoryError", Outcome.OUT_OF_MEMORY, "MemoryError: "),
        ("raise SystemExit(3)", Outcome.CRASHED, "exited with status 3"),
        ("import os; os._exit(3)", Outcome.CRASHED, "exited with status 3"),
        ("import os; os.kill(os.getpid(), 11)", Outcome.CRASHED, "killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 40)", Outcome.CRASHED, "killed by signal 40"),
        ("probe.send({'type': 'end', 'outcome': 'wonderful'})", Outcome.CRASHED, None),
        ("probe.send({'type': 'end', 'outcome': 'lost', 'reason': 7})", Outcome.CRASHED, "7"),
    ],
)
def test_each_way_to_end_has_its_outcome(text: str, outcome: Outcome, reason: str | None) -> None:
    ends_first = text.startswith("probe.send")
    with probe_host("scripted") as host:
        _, last = ended(slot_run(host, code(text + ("; import os; os._exit(0)" if ends_first else ""))))

    assert end_of(last) == (outcome, reason)


@pytest.mark.parametrize(
    "garbage", ["b'no json\\n'", 'b\'{"type": "report", "step": 9, "metrics": {"val_loss": "x"}}\\n\'']
)
def test_garbage_is_a_crash_of_that_probe(garbage: str) -> None:
    with probe_host("scripted") as host:
        _, last = ended(slot_run(host, code(f"probe._connection.sendall({garbage}); import time; time.sleep(3600)")))

        assert end_of(last)[0] == Outcome.CRASHED
        assert "sent a report that cannot be read" in (end_of(last)[1] or "")
        assert end_of(ended(slot_run(host, code("probe.report(step=10, val_loss=1.0)")))[1]) == (Outcome.OK, None)


def test_a_killed_warm_parent_is_a_lost_run() -> None:
    with probe_host() as host:
        run = slot_run(host, probe_config(hang_at=2))
        run.step()
        os.killpg(host._parent.pid, signal.SIGKILL)
        _, last = ended(run)

    assert end_of(last) == (Outcome.LOST, "the slot's warm parent ended")


def test_a_probe_over_its_memory_limit_is_out_of_memory_and_the_next_one_is_fine() -> None:
    with probe_host() as host:
        setup = slot_setup(host_memory_mib=100.0)
        _, over = ended(slot_run(host, probe_config(allocate_mib=400), setup))
        _, under = ended(slot_run(host, probe_config(allocate_mib=50), setup))

    assert end_of(over)[0] == Outcome.OUT_OF_MEMORY
    assert "MemoryError" in (end_of(over)[1] or "")
    assert end_of(under)[0] == Outcome.OK


def test_a_workload_that_cannot_be_imported_crashes_each_trial_at_once() -> None:
    with short_folder() as folder:
        slot = Slot.__new__(Slot)
        setup = slot_setup(folder, workload="no-such-workload")
        slot.setup({"setup": setup, "assignment": Assignment("t0", probe_config())})
        try:
            for number in range(3):
                began = time.monotonic()
                report = _until_end(slot)
                assert time.monotonic() - began < 5.0
                assert end_of(report)[0] == Outcome.CRASHED
                assert "no-such-workload" in (end_of(report)[1] or "")
                slot.reset_config({"setup": setup, "assignment": Assignment(f"t{number}", probe_config())})
        finally:
            slot.cleanup()


def test_a_slot_recovers_from_whatever_has_happened_to_its_parent() -> None:
    with short_folder() as folder:
        slot = Slot.__new__(Slot)
        slot.setup(_config(folder, "t0", hang_at=2))
        try:
            assert slot.step()["slot"].points
            first = slot._host
            assert first is not None
            slot.reset_config(_config(folder, "t1"))
            assert end_of(_until_end(slot)) == (Outcome.OK, None)
            assert slot._host is first

            os.killpg(first._parent.pid, signal.SIGKILL)
            assert eventually(lambda: not first.is_alive)
            slot.reset_config(_config(folder, "t2"))

            assert end_of(_until_end(slot)) == (Outcome.OK, None)
            assert slot._host is not first
        finally:
            slot.cleanup()
        assert list(folder.iterdir()) == []


def _config(folder: Path, key: str, **parameters: Any) -> dict[str, Any]:
    return {"setup": slot_setup(folder), "assignment": Assignment(key, probe_config(**parameters))}


def _until_end(slot: Slot) -> SlotReport:
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        report: SlotReport = slot.step()["slot"]
        if report.end is not None:
            return report
    raise AssertionError("the run has not ended")


def test_every_signal_has_something_to_be_called_by() -> None:
    assert [signal_name(number) for number in (6, 34, 40)] == ["SIGABRT", "SIGRTMIN", "signal 40"]
