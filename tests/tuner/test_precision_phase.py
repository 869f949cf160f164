"""`precision: auto`: what is measured, what follows from it, and what does where nothing can be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.support import CPU, RecordingObserver, coordinate, memory
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.device import Device
from tuner.foreseen import BY_ITSELF
from tuner.jobspec import ResolvedJob
from tuner.phases import Decision
from tuner.precision_phase import candidates, wants_measuring
from tuner.records import Outcome, ProbeRecord, Value
from tuner.spec import resolve
from workloads.precisions import Tried, choose

SLOW = {"precision": "fp32", "step_s": 0.02, "loss": 1.0, "reason": None}
FAST = {"precision": "bf16", "step_s": 0.01, "loss": 1.001, "reason": None}


def job(**spec: Any) -> ResolvedJob:
    given = {"workload": "digits-cnn", "confirm": {"seeds": 0}, "range_test": False, "limits": {"host_memory_mib": 900}}
    return resolve({**given, **spec}).job


def ended(assignment: Assignment, measured: Any, outcome: Outcome = Outcome.OK) -> SlotReport:
    end = ProbeEnd(outcome, None if outcome == Outcome.OK else "killed", Value.of(None))
    fit = None if measured is None else {"precisions": measured}
    return SlotReport((), 0.0, ProbeRecord(2.0, 2.0, 0, 1, "test CPU"), "", end=end, fit=fit)


def test_a_precision_that_is_measured_to_be_much_faster_is_taken_by_everything_after_it() -> None:
    coordinator, observer = coordinate(job())
    first = coordinator.next()
    assert first is not None
    assert first.probe["fit"]["precisions"]["among"] == ("fp32", "bf16")

    coordinator.on_report(first.key, ended(first, {"tried": [SLOW, FAST]}))
    following = coordinator.next()

    assert following is not None
    assert (following.fit, following.probe["precision"]) == ("predict", "bf16")
    assert observer.decided[-1].precision == "bf16"
    assert observer.precisions[0]["text"] == (
        "precision bf16: fp32 20 ms a step, loss 1, bf16 10 ms a step, loss 1.001"
    )
    assert json.loads(json.dumps(observer.precisions)) == observer.precisions
    assert coordinator.result().device_seconds == 2.0


@pytest.mark.parametrize(
    ("measured", "outcome", "said"),
    [
        (None, Outcome.OUT_OF_MEMORY, "killed"),
        ({"skipped": "it takes longer than 5 s", "tried": []}, Outcome.OK, "it takes longer than 5 s"),
    ],
)
def test_where_nothing_could_be_measured_the_device_decides_and_why_is_said(
    measured: Any, outcome: Outcome, said: str
) -> None:
    coordinator, observer = coordinate(job())
    first = coordinator.next()
    assert first is not None
    coordinator.on_report(first.key, ended(first, measured, outcome))
    assert coordinator.next() is not None
    assert observer.decided[-1].precision == "fp32"
    assert observer.precisions[0]["text"].endswith(f"nothing was measured: {said}")


def test_it_takes_no_more_than_a_hundredth_of_a_budget_in_time_either() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 40, "seconds": 100.0}))
    first = coordinator.next()
    assert first is not None
    assert first.probe["fit"]["precisions"]["seconds"] == pytest.approx(BY_ITSELF * 1.0)

    running = replace(ended(first, None), end=None)  # for two seconds by now

    assert coordinator.on_report(first.key, running) == Decision.STOP
    assert observer.precisions[0]["text"].endswith("nothing was measured: it was not over after 1 s")
    assert observer.decided[-1].precision == "fp32"


def test_an_attempt_that_died_on_the_way_measures_again_and_one_that_knows_does_not() -> None:
    storage = memory()
    died, _ = coordinate(job(), storage)
    assert died.next() is not None
    second, _ = coordinate(job(), storage)
    third, _ = coordinate(replace(job(), precision="bf16"), storage)
    again, after = second.next(), third.next()
    assert again is not None and again.fit == "precisions"
    assert after is not None and after.fit == "predict"


def test_a_job_that_is_cancelled_meanwhile_ends() -> None:
    observer = RecordingObserver()
    coordinator, _ = coordinate(job(), observer=observer)
    first = coordinator.next()
    assert first is not None
    coordinator._context.is_cancelled = True
    coordinator.on_report(first.key, replace(ended(first, None), end=None))
    assert coordinator.next() is None
    assert coordinator.is_finished
    assert observer.decided == []


@pytest.mark.parametrize(
    ("spec", "wants"),
    [
        ({}, True),
        ({"precision": "fp32"}, False),
        ({"budget": {"trials": 5}}, False),
        ({"workload": "quadratic", "limits": None}, False),
    ],
)
def test_only_what_x5tune_trains_with_budget_enough_is_measured(spec: dict[str, Any], wants: bool) -> None:
    assert wants_measuring(job(**spec), CPU) == wants


def test_only_precisions_that_a_device_has_are_tried() -> None:
    assert candidates(CPU) == ("fp32", "bf16")
    assert candidates(Device("cuda", "old", has_bf16=False)) == ("fp32", "fp16")
    assert candidates(Device("cuda", "new", has_bf16=True)) == ("fp32", "fp16", "bf16")


@pytest.mark.parametrize(
    ("tried", "usual", "chosen"),
    [
        ([("fp32", 1.0, 2.0), ("bf16", 0.9, 2.0)], "fp32", "fp32"),
        ([("fp32", 1.0, 2.0), ("bf16", 0.5, 2.01)], "fp32", "bf16"),
        ([("fp32", 1.0, 2.0), ("bf16", 0.5, 2.2)], "fp32", "fp32"),
        ([("fp32", 1.0, 2.0), ("fp16", 0.4, None), ("bf16", 0.5, 2.0)], "bf16", "bf16"),
        ([("fp32", 1.0, 2.0), ("fp16", 0.4, None)], "fp16", "fp32"),
        ([("fp32", 1.0, None), ("bf16", 0.5, None)], "bf16", "bf16"),
        ([], "fp16", "fp16"),
    ],
    ids=["not worth it", "much faster", "wrong", "usual is best", "usual diverges", "all diverge", "nothing known"],
)
def test_another_precision_than_the_usual_has_to_be_right_and_much_faster(
    tried: list[tuple[str, float, float | None]], usual: str, chosen: str
) -> None:
    assert choose([Tried(*each) for each in tried], usual) == chosen
