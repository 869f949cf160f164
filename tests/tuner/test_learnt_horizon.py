"""A job that does not say how long a full run is: its first run shows it, whoever dies on the way."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import (
    Clock,
    RecordingObserver,
    ScriptedSlots,
    coordinate,
    job,
    memory,
    probe_config,
    short_folder,
    slot_setup,
    stored,
)
from tests.tuner.test_resume import RunnerDied
from tuner.assignment import Assignment, ProbeEnd
from tuner.jobspec import MetricSource, ResolvedJob, UserCode
from tuner.probe_process import ProbeHost
from tuner.records import Outcome, StopReason, Value
from tuner.slot import SlotRun
from workloads.contract import Fidelity


def open_job(**spec: Any) -> ResolvedJob:
    known = job(budget={"trials": 6}, sampler="random", **spec)
    return replace(known, fidelity=Fidelity.from_json({**known.fidelity.to_json(), "max": None}))


def fails(outcome: Outcome, reason: str) -> Callable[[Assignment], ProbeEnd]:
    return lambda _: ProbeEnd(outcome, reason, Value.of(None))


def test_the_first_run_goes_alone_and_the_others_are_compared_by_what_it_showed() -> None:
    given: list[int] = []
    coordinator, observer = coordinate(open_job(), slots=3)
    slots = ScriptedSlots(coordinator, 3)
    observer.at["trial_ended"] = lambda: given.append(len(slots.given))

    slots.play()

    assert given[:2] == [1, 4]
    assert [run.probe["fidelity"]["max"] for run in slots.given] == [None, *[400.0] * 5]
    assert [decided.fidelity.max for decided in observer.decided] == [400.0]
    assert [point.index for number, point in observer.points if number == 0] == [5, 10, 15, 20]
    assert observer.outcomes == {"ok": 6}
    assert coordinator.result().stop_reason == StopReason.TRIALS


def test_the_first_run_counts_as_a_full_one() -> None:
    coordinator, observer = coordinate(replace(open_job(), budget=job(budget={"full_runs": 3}).budget))

    ScriptedSlots(coordinator).play()

    assert (observer.outcomes["ok"], coordinator.result().stop_reason) == (3, StopReason.FULL_RUNS)


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY])
def test_a_first_run_that_shows_nothing_ends_the_job_with_what_to_do(outcome: Outcome) -> None:
    coordinator, observer = coordinate(open_job(), slots=2)

    ScriptedSlots(coordinator, 2, end=fails(outcome, "the reason")).play()

    result = coordinator.result()
    assert observer.outcomes == {str(outcome): 1}
    assert (result.failed, result.stop_reason) == (True, StopReason.FAILURES)
    assert f"({outcome}: the reason)" in (result.error or "")
    assert "give fidelity.max" in (result.error or "")


def test_a_first_run_that_diverges_ends_the_job_too() -> None:
    coordinator, observer = coordinate(open_job())

    ScriptedSlots(coordinator, curve=lambda _: [float("nan")]).play()

    assert observer.outcomes == {"diverged": 1}
    assert coordinator.result().failed


def test_a_budget_that_ends_the_first_run_is_the_reason() -> None:
    clock = Clock()
    coordinator, observer = coordinate(replace(open_job(), budget=job(budget={"seconds": 2}).budget), clock=clock)

    ScriptedSlots(coordinator, clock=clock).play()

    assert observer.outcomes == {"cancelled": 1}
    assert coordinator.result().stop_reason == StopReason.SECONDS


CALLS = ["trial_started", "job_decided", "points_reported", "trial_ended"]


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("call", CALLS)
def test_a_death_at_any_word_of_the_first_run_is_taken_up(call: str, slots: int) -> None:
    storage = memory()

    def die() -> None:
        raise RunnerDied

    with pytest.raises(RunnerDied):
        first, seen = coordinate(open_job(), storage, observer=RecordingObserver(at={call: die}), slots=slots)
        ScriptedSlots(first, slots).play()
    known = seen.decided[-1] if seen.decided else open_job()

    second, observer = coordinate(known, storage, slots=slots)
    ScriptedSlots(second, slots).play()

    ends = [trial.user_attrs["end"]["outcome"] for trial in stored(storage)]
    assert (ends.count("ok"), ends.count("lost")) == (6, 1)
    decided = observer.decided or seen.decided
    assert {one.fidelity.max for one in decided} == {400.0}


def test_a_first_run_that_failed_before_its_runner_died_still_ends_the_job() -> None:
    storage = memory()
    first, seen = coordinate(open_job(), storage)
    ScriptedSlots(first, end=fails(Outcome.CRASHED, "x")).play(until=lambda: len(seen.ended) == 1)

    second, observer = coordinate(open_job(), storage)
    ScriptedSlots(second).play()

    assert observer.started == []
    assert "did not come to its end (crashed)" in (second.result().error or "")


# In a slot, with real processes


@pytest.fixture
def run() -> Any:
    with short_folder() as folder:
        yield lambda text, config, **changes: _run(folder, text, config, **changes)


def _run(folder: Path, text: str, config: dict[str, Any], **changes: Any) -> Any:
    (folder / "train.py").write_text(text)
    code = changes.pop("code", None) or UserCode(str(folder), argv=(sys.executable, "train.py"))
    setup = slot_setup(folder, code=code, metrics=changes.pop("metrics", None), **changes)
    host = ProbeHost(setup.to_load(), folder / "h", {}, 1.0)
    try:
        slot = SlotRun(host, setup, Assignment("t0", config))
        reports = [slot.step()]
        while reports[-1].end is None:
            reports.append(slot.step())
        return reports
    finally:
        host.close()


OPEN = {"axis": "samples", "max": None, "reports": 4}
EPOCHS = {"axis": "epochs", "max": None, "reports": 4}


def test_a_command_shows_its_horizon_by_its_own_end(run: Any) -> None:
    text = "for step in range(1, 9): print('step', step, 'loss', 1 / step)"
    source = MetricSource(stdout=r"step (?P<step>\d+) loss (?P<val_loss>\S+)")

    reports = run(text, probe_config(fidelity=OPEN), metrics=source)

    assert [len(report.points) for report in reports[:-1]] == [0] * (len(reports) - 1)
    assert [(point.index, point.step) for point in reports[-1].points] == [(1, 2), (2, 4), (3, 6), (4, 8)]
    assert (reports[-1].position, reports[-1].end.outcome) == (512.0, Outcome.OK)
    assert reports[-1].end.value == Value.of(0.125)


def test_a_command_that_counts_epochs_from_0_shows_how_many_there_were(run: Any) -> None:
    text = "for epoch in range(3): print(f'Epoch {epoch}: {1 / (epoch + 1)}')"
    source = MetricSource(stdout=r"Epoch (?P<epoch>\d+): (?P<val_loss>\S+)")

    reports = run(text, probe_config(fidelity=EPOCHS), metrics=source)

    assert (reports[-1].position, reports[-1].end.outcome) == (3.0, Outcome.OK)


def test_a_function_that_ends_by_itself_shows_it_and_one_that_asks_for_the_steps_is_told(run: Any) -> None:
    by_itself = """
def train(config, probe):
    for step in range(1, 9):
        if probe.due(step):
            probe.report(step=step, val_loss=1 / step)
"""
    asks = "def train(config, probe):\n    for step in range(probe.steps): ..."

    ends = []
    for text in (by_itself, asks):
        with short_folder() as folder:
            ends.append(
                _run(folder, text, probe_config(fidelity=OPEN), code=UserCode(str(folder), "train.py:train"))[-1]
            )

    assert (ends[0].position, ends[0].end.outcome) == (512.0, Outcome.OK)
    assert ends[1].end.outcome == Outcome.CRASHED
    assert "give fidelity.max in the job" in ends[1].end.reason


def test_a_command_that_reports_no_progress_shows_nothing(run: Any) -> None:
    reports = run("import x5tune; x5tune.report(step=0, val_loss=1.0)", probe_config(fidelity=OPEN))

    assert reports[-1].end.outcome == Outcome.NO_METRIC
    assert "no length of a run" in reports[-1].end.reason


def test_a_command_that_goes_on_past_the_horizon_is_ended_there_with_the_value_that_counts(run: Any) -> None:
    text = """
import time, x5tune
for step in range(1, 10**9):
    x5tune.report(step=step, val_loss=1 / step)
"""
    reports = run(text, probe_config(fidelity={"axis": "samples", "max": 512, "reports": 4}))

    assert (reports[-1].end.outcome, reports[-1].end.value) == (Outcome.OK, Value.of(0.125))
    assert "went on past fidelity.max = 512 samples" in reports[-1].end.reason


def test_a_command_that_ends_far_before_the_horizon_is_counted_as_a_warning(run: Any) -> None:
    reports = run("import x5tune; x5tune.report(step=2, val_loss=1.0)", probe_config())

    assert (reports[-1].end.outcome, reports[-1].warnings) == (Outcome.OK, {"short_of_the_horizon": 1})
