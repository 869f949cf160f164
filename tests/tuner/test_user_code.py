"""The user's own training in a slot: functions, commands, and everything that they get wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import probe_config, processes_in, short_folder, slot_setup
from tuner.assignment import Assignment, SlotReport, SlotSetup
from tuner.jobspec import MetricSource, UserCode
from tuner.probe_process import ProbeHost
from tuner.records import Outcome
from tuner.slot import SlotRun

TRAIN = """
def train(config, probe):
    x = 3.0
    for step in range(1, probe.steps + 1):
        x -= config["lr"] * (x - 1)
        if probe.due(step):
            probe.report(step=step, val_loss=(x - 1) ** 2)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


def play(setup: SlotSetup, config: dict[str, Any] | None = None, *, stop_after: int = 10**6) -> list[SlotReport]:
    """Every report of one run that may go on, until its end."""
    host = ProbeHost(setup.to_load(), Path(setup.folder) / "h", setup.own_environment, setup.threads)
    try:
        run = SlotRun(host, setup, Assignment("t0", config or probe_config()))
        reports = [run.step()]
        while reports[-1].end is None and len(reports) < stop_after:
            reports.append(run.step())
        return reports
    finally:
        host.close()


def function(folder: Path, text: str = TRAIN, target: str = "train.py:train", **changes: Any) -> SlotSetup:
    (folder / "train.py").write_text(text)
    return slot_setup(folder, code=UserCode(str(folder), target=target), **changes)


def command(folder: Path, text: str, *arguments: str, **changes: Any) -> SlotSetup:
    (folder / "train.py").write_text(text)
    argv = (sys.executable, "train.py", *arguments)
    return slot_setup(folder, code=UserCode(str(folder), argv=argv), **changes)


def outcome(reports: list[SlotReport]) -> Outcome:
    assert reports[-1].end is not None
    return reports[-1].end.outcome


def reason(reports: list[SlotReport]) -> str:
    assert reports[-1].end is not None
    return reports[-1].end.reason or ""


def values(reports: list[SlotReport]) -> list[tuple[int, float | None]]:
    return [(point.index, point.value.number) for report in reports for point in report.points]


def test_a_function_reports_at_due_steps_and_ends_ok(folder: Path) -> None:
    reports = play(function(folder))

    assert outcome(reports) == Outcome.OK
    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]


def test_a_function_of_a_package_in_the_folder_is_found_by_its_module(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").write_text("")
    (folder / "mine" / "loop.py").write_text(TRAIN)

    assert outcome(play(function(folder, target="mine.loop:train"))) == Outcome.OK


@pytest.mark.parametrize("name", ["workloads", "tuner", "service"])
def test_the_users_own_packages_may_be_called_as_ours(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("mine = 41")
    text = f"import {name}\nassert {name}.mine == 41\n" + TRAIN

    assert outcome(play(function(folder, text))) == Outcome.OK


def test_what_the_function_gets_has_values_by_name_and_the_rest_as_attributes(folder: Path) -> None:
    text = """
def train(config, probe):
    assert config["lr"] == config.parameters["lr"] == config["parameters"]["lr"] == 0.005
    assert config["micro_batch"] == 64 and config.get("nothing") is None
    assert (config.seed, config.trial, config.device) == (3, 0, "cpu")
    try:
        config["learning_rate"]
    except KeyError as error:
        assert "lr" in str(error)
    probe.report(step=10, val_loss=0.5)
"""
    config = probe_config(derived={"micro_batch": 64, "accumulation": 1})

    assert outcome(play(function(folder, text), config)) == Outcome.OK


def test_the_script_side_works_in_a_function_too(folder: Path) -> None:
    text = """
import x5tune
def train(config, probe):
    for step in range(1, 11):
        x5tune.report(step=step, val_loss=1 / step)
"""
    reports = play(function(folder, text))

    assert (outcome(reports), len(values(reports))) == (Outcome.OK, 5)


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        ("import nowhere_to_be_found", "train.py:train", "No module named 'nowhere_to_be_found'"),
        ("def trian(config, probe): ...", "train.py:train", "what can be called there: trian"),
        ("train = 3", "train.py:train", "is int, not a function"),
        ("class train: ...", "train.py:train", "is a class without model, train_data, eval_data, loss, evaluate"),
        ("def train(", "train.py:train", "was never closed"),
    ],
)
def test_a_module_that_cannot_be_used_ends_the_job_at_once_with_the_reason(
    folder: Path, text: str, target: str, said: str
) -> None:
    reports = play(function(folder, text, target))

    assert said in reason(reports)
    assert "\n" not in reason(reports)
    assert reports[-1].end is not None
    assert reports[-1].end.is_fatal
    assert said in reports[-1].log_tail
    assert "warm_parent" not in reports[-1].log_tail


def test_a_module_that_ends_the_interpreter_ends_the_job_at_once(folder: Path) -> None:
    reports = play(function(folder, "import os\nprint('bye', flush=True)\nos._exit(7)"))

    assert "the warm parent ended (status 7): bye" in reason(reports)
    assert reports[-1].end is not None
    assert (reports[-1].end.outcome, reports[-1].end.is_fatal) == (Outcome.CRASHED, True)


def test_a_command_without_any_of_our_code_is_read_by_a_pattern_on_its_output(folder: Path) -> None:
    text = """
import sys
lr, batch = float(sys.argv[1]), int(sys.argv[2])
for step in range(1, 11):
    print(f"epoch {step}: loss={1 / step * lr:.6f}")
"""
    source = MetricSource(stdout=r"epoch (?P<step>\d+): loss=(?P<val_loss>\S+)")
    setup = command(folder, text, "{lr}", "{micro_batch}", metrics=source)

    reports = play(setup, probe_config(derived={"micro_batch": 64, "accumulation": 1}))

    assert outcome(reports) == Outcome.OK
    assert values(reports)[-1] == (5, 0.0005)


def test_a_metric_whose_name_is_no_identifier_is_read_by_its_group(folder: Path) -> None:
    source = MetricSource(stdout=r"(?P<step>\d+) (?P<val_acc_5>\S+)")

    reports = play(command(folder, "print('10 0.75')", metrics=source, metric="val/acc@5"))

    assert values(reports) == [(5, 0.75)]


def test_a_command_may_append_its_reports_to_a_file(folder: Path) -> None:
    text = """
import json, os
with open(os.environ["X5TUNE_REPORT"], "a") as file:
    for step in range(1, 11):
        file.write(json.dumps({"step": step, "metrics": {"val_loss": 1 / step}, "samples": step * 64}) + "\\n")
        file.flush()
"""
    reports = play(command(folder, text))

    assert (outcome(reports), [index for index, _ in values(reports)]) == (Outcome.OK, [1, 2, 3, 4, 5])


def test_a_command_may_use_the_script_side(folder: Path) -> None:
    text = """
import x5tune
lr = x5tune.config()["parameters"]["lr"]
for step in range(1, 11):
    x5tune.report(step=step, val_loss=lr / step)
"""
    reports = play(command(folder, text))

    assert (outcome(reports), values(reports)[-1]) == (Outcome.OK, (5, 0.0005))


@pytest.mark.parametrize(
    ("text", "ending", "said"),
    [
        ("", Outcome.NO_METRIC, "never reported 'val_loss'; it reported: none at all"),
        ("import x5tune; x5tune.report(step=1, loss=1.0)", Outcome.NO_METRIC, "it reported: loss"),
        ("raise SystemExit(3)", Outcome.CRASHED, "exited with status 3"),
        ("1 / 0", Outcome.CRASHED, "ZeroDivisionError: division by zero"),
        ("import x5tune; x5tune.report(step=1, val_loss='low')", Outcome.CRASHED, "val_loss"),
        ("print(input())", Outcome.CRASHED, "EOFError"),
        ("raise RuntimeError('CUDA out of memory. Tried to allocate 2 GiB')", Outcome.OUT_OF_MEMORY, "out of memory"),
        ("import os; os.kill(os.getpid(), 11)", Outcome.CRASHED, "killed by SIGSEGV"),
        ("import x5tune; x5tune.report(step=1, val_loss=float('nan'))", Outcome.DIVERGED, "val_loss is nan"),
    ],
)
def test_each_way_a_command_ends_has_its_outcome(folder: Path, text: str, ending: Outcome, said: str) -> None:
    reports = play(command(folder, text))

    assert outcome(reports) == ending
    assert said in reason(reports)


def test_a_missing_interpreter_is_named(folder: Path) -> None:
    setup = slot_setup(folder, code=UserCode(str(folder), argv=("python2.6", "train.py")))

    reports = play(setup)

    assert outcome(reports) == Outcome.CRASHED
    assert "cannot run 'python2.6': No such file or directory" in reason(reports)


def test_a_script_that_only_prints_is_silent_and_is_ended(folder: Path) -> None:
    setup = command(folder, "while True: print('x' * 1000)", silence_seconds=1.0)

    reports = play(setup)

    assert outcome(reports) == Outcome.TIMED_OUT
    assert "silence_seconds" in reason(reports)
    assert len(reports[-1].log_tail) < 100_000


def test_the_workers_that_a_script_leaves_behind_end_with_it(folder: Path) -> None:
    text = """
import subprocess, sys, x5tune
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
x5tune.report(step=10, val_loss=1.0)
"""
    reports = play(command(folder, text))

    assert outcome(reports) == Outcome.OK
    assert processes_in(folder) == []


def test_a_value_stays_inside_its_argument(folder: Path) -> None:
    text = "import json, sys; print(json.dumps(sys.argv[1:]))"
    setup = command(folder, text, "--name={name}", "{flag}")

    reports = play(setup, probe_config(name="$(touch gone); x' y", flag=True))

    assert json.loads(reports[-1].log_tail) == ["--name=$(touch gone); x' y", "true"]
    assert not (folder / "gone").exists()


def test_the_environment_of_a_command_has_what_it_needs_and_no_secrets(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("X5TUNE_TOKEN", "secret")
    monkeypatch.delenv("X5TUNE_DATA", raising=False)
    text = "import os; print(sorted(n for n in os.environ if n.startswith('X5TUNE'))); print(os.getcwd())"

    reports = play(command(folder, text))

    assert reports[-1].log_tail.splitlines() == [
        "['X5TUNE_CONFIG', 'X5TUNE_CONTROL', 'X5TUNE_REPORT', 'X5TUNE_RUN_DIR']",
        str(folder),
    ]


def test_a_command_over_its_memory_limit_is_out_of_memory(folder: Path) -> None:
    reports = play(command(folder, "held = b'x' * (600 << 20); print(len(held))", host_memory_mib=300.0))

    assert outcome(reports) == Outcome.OUT_OF_MEMORY
    assert "MemoryError" in reason(reports)
