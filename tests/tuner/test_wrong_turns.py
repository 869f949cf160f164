"""What users' scripts get wrong: an outcome and a reason for each, and a next run that goes on as if nothing was."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import ScriptedSlots, coordinate, eventually, job, probe_config, processes_in, short_folder
from tests.tuner.support import slot_setup as setup_in
from tests.tuner.test_user_code import TRAIN, command, function, outcome, play, reason, values
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.jobspec import MetricSource, UserCode
from tuner.probe_process import ProbeHost
from tuner.records import Outcome, StopReason, Value
from tuner.slot import SlotRun


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


def one_after_the_other(folder: Path, *texts: str, **changes: Any) -> list[list[SlotReport]]:
    """What becomes of commands that run in the same slot."""
    host = ProbeHost({}, folder / "slot" / "h", {}, 1.0)
    found = []
    try:
        for number, text in enumerate(texts):
            (folder / f"train{number}.py").write_text(text)
            code = UserCode(str(folder), argv=(sys.executable, f"train{number}.py", "{run_dir}"))
            run = SlotRun(host, setup_in(folder / "slot", code=code, **changes), Assignment("t0", probe_config()))
            reports = [run.step()]
            while reports[-1].end is None:
                reports.append(run.step())
            found.append(reports)
    finally:
        host.close()
    return found


def test_a_pattern_that_backtracks_ends_its_trial_and_holds_nobody_up(folder: Path) -> None:
    almost = "import time; print('step 1 val_loss 0.5'); print('a' * 60 + 'b', flush=True); time.sleep(60)"
    pattern = r"^(a|a)+$|step (?P<step>\d+) val_loss (?P<val_loss>\S+)"

    first, second = one_after_the_other(
        folder, almost, "print('step 10 val_loss 0.5')", metrics=MetricSource(stdout=pattern), metric="val_loss"
    )

    assert outcome(first) == Outcome.CRASHED
    assert "metrics.stdout takes more than 1 s to tell whether it matches the line 'aaaa" in reason(first)
    assert outcome(second) == Outcome.OK


GOOD = "import x5tune; x5tune.report(step=10, val_loss=0.5)"


@pytest.mark.parametrize(
    ("text", "ending", "said"),
    [
        ("raise SystemExit('lr 0.3 is too large: give at most 0.1')", Outcome.CRASHED, "lr 0.3 is too large"),
        (
            "import sys; print('no!', file=sys.stderr); sys.exit(3)",
            Outcome.CRASHED,
            "exited with status 3: no!",
        ),
        ("print(input('lr? '))", Outcome.CRASHED, "EOFError"),
        ("import sys; sys.exit(len(sys.stdin.read()))", Outcome.NO_METRIC, "never reported"),
        ("print('val_loss 0.5')", Outcome.NO_METRIC, "name what it prints with metrics.stdout"),
        ("open('/dev/full', 'w').write('x' * 10**6)", Outcome.CRASHED, "No space left on device"),
        ("import os; os.chdir('/'); os.remove('train0.py')", Outcome.CRASHED, "FileNotFoundError"),
    ],
)
def test_a_wrong_turn_is_told_by_its_own_words_and_the_next_run_goes_on(
    folder: Path, text: str, ending: Outcome, said: str
) -> None:
    wrong, next_one = one_after_the_other(folder, text, GOOD)

    assert outcome(wrong) == ending
    assert said in reason(wrong)
    assert (outcome(next_one), values(next_one)) == (Outcome.OK, [(5, 0.5)])


@pytest.mark.parametrize("metrics", [None, MetricSource(jsonl="log.jsonl")])
def test_a_script_may_change_its_directory_and_still_reports(folder: Path, metrics: MetricSource | None) -> None:
    text = """
import json, os, sys, tempfile, x5tune
os.chdir(tempfile.gettempdir())
assert x5tune.config()["parameters"]["lr"] == 0.005
line = {"step": 10, "val_loss": 0.5}
if len(sys.argv) > 2:
    x5tune.report(**line)
open(os.path.join(sys.argv[1], "log.jsonl"), "w").write(json.dumps(line) + "\\n")
"""
    arguments = ("{run_dir}",) if metrics else ("{run_dir}", "report")

    reports = play(command(folder, text, *arguments, metrics=metrics))

    assert (outcome(reports), values(reports)) == (Outcome.OK, [(5, 0.5)])


def test_a_function_may_change_its_directory_and_the_next_starts_in_its_folder(folder: Path) -> None:
    text = "import os\n" + TRAIN.replace("x = 3.0", "assert os.path.exists('train.py'); os.chdir('/'); x = 3.0")
    setup = function(folder, text)
    host = ProbeHost(setup.to_load(), folder / "h", {}, 1.0)
    try:
        for _ in range(2):
            run = SlotRun(host, setup, Assignment("t0", probe_config()))
            reports = [run.step()]
            while reports[-1].end is None:
                reports.append(run.step())
            assert outcome(reports) == Outcome.OK, reason(reports)
    finally:
        host.close()


FILLS = """
import os, sys, time
with open(os.path.join(sys.argv[1], "checkpoint.pt"), "wb") as file:
    for _ in range(64):
        file.write(b"x" * (1 << 20))
        file.flush()
    time.sleep(600)
"""


def test_a_run_that_keeps_more_than_its_quota_is_ended_and_its_disk_is_given_back(folder: Path) -> None:
    full, next_one = one_after_the_other(folder, FILLS, GOOD, disk_mib=8.0)

    assert outcome(full) == Outcome.CRASHED
    assert "64 MiB in its run folder, over limits.disk_mib = 8" in reason(full)
    assert outcome(next_one) == Outcome.OK
    assert not list(folder.rglob("checkpoint.pt"))


def test_a_run_within_its_quota_and_holes_in_files_are_left_alone(folder: Path) -> None:
    text = """
import os, sys, time, x5tune
with open(os.path.join(sys.argv[1], "sparse"), "wb") as file:
    file.truncate(1 << 40)
for step in (4, 10):
    time.sleep(1.2)
    x5tune.report(step=step, val_loss=0.5)
"""
    assert outcome(play(command(folder, text, "{run_dir}", disk_mib=8.0))) == Outcome.OK


def test_workers_that_a_script_leaves_in_every_way_end_with_it(folder: Path) -> None:
    text = """
import os, subprocess, sys, x5tune
sleep = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"]
for _ in range(3):
    subprocess.Popen(sleep, start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, sleep)
    os._exit(0)
os.wait()
x5tune.report(step=10, val_loss=1.0)
"""
    first, next_one = one_after_the_other(folder, text, GOOD)

    assert (outcome(first), outcome(next_one)) == (Outcome.OK, Outcome.OK)
    assert eventually(lambda: processes_in(folder) == [])


@pytest.mark.parametrize(
    ("steps", "indexes", "warnings"),
    [
        ((2, 4, 4, 6), [1, 2, 3], {"repeated_step": 1}),
        ((6, 2, 4, 10), [3, 1, 2, 5], {"step_out_of_order": 2}),
        ((3, 5, 9, 10), [1, 2, 4, 5], {}),
    ],
)
def test_steps_may_be_repeated_out_of_order_or_spaced_as_they_like(
    folder: Path, steps: tuple[int, ...], indexes: list[int], warnings: dict[str, int]
) -> None:
    text = f"import x5tune\nfor step in {steps}: x5tune.report(step=step, metrics={{'val/acc@5': step / 10}})"

    reports = play(command(folder, text, metric="val/acc@5"))

    assert outcome(reports) == Outcome.OK
    assert [index for index, _ in values(reports)] == indexes
    assert {k: n for k, n in reports[-1].warnings.items() if k != "short_of_the_horizon"} == warnings


@pytest.mark.parametrize(
    "number", ["numpy.float32(0.5)", "decimal.Decimal('0.5')", "torch.tensor(0.5)", "numpy.array(0.5)"]
)
def test_numbers_of_other_libraries_are_numbers(folder: Path, number: str) -> None:
    module = number.partition(".")[0]
    text = f"import x5tune, {module}; x5tune.report(step=10, val_loss={number})"

    assert values(play(command(folder, text))) == [(5, 0.5)]


def test_one_import_error_is_told_once_whatever_the_number_of_slots() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 12}), slots=3)
    end = ProbeEnd(Outcome.CRASHED, "train.py cannot be imported: No module named 'x'", Value.of(None), is_fatal=True)

    ScriptedSlots(coordinator, 3, curve=lambda _: [], end=lambda _: end).play()

    assert observer.outcomes == {"crashed": 1, "cancelled": 2}
    told = [ended for ended in observer.ended if "No module named" in (ended.reason or "")]
    assert (len(told), told[0].log_tail) == (1, "log")
    assert {ended.log_tail for ended in observer.ended if ended is not told[0]} == {""}
    result = coordinator.result()
    assert (result.stop_reason, result.error) == (StopReason.FAILURES, end.reason)


def test_a_pattern_that_matches_nothing_is_told_so(folder: Path) -> None:
    source = MetricSource(stdout=r"step (?P<step>\d+) val_loss (?P<val_loss>\S+)")

    reports = play(command(folder, "print('epoch 1 loss 0.5')", metrics=source))

    assert outcome(reports) == Outcome.NO_METRIC
    assert "metrics.stdout matched no line of its output" in reason(reports)


def test_a_mistake_in_one_run_folder_cannot_reach_another_run(folder: Path) -> None:
    text = "import os, sys; os.rmdir(sys.argv[1]); os.symlink('/', sys.argv[1])"

    first, next_one = one_after_the_other(folder, text, GOOD)

    assert outcome(first) == Outcome.NO_METRIC
    assert outcome(next_one) == Outcome.OK
    assert os.path.isdir("/usr")  # noqa: PTH112
