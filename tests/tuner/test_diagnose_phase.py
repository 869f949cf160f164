"""The diagnosis at the end of a job that recommends nothing, within what is left of the job's budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.support import Clock, RecordingObserver, coordinate
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.coordinator import Coordinator
from tuner.diagnose_phase import NOT_DIAGNOSED, SECONDS
from tuner.phases import Decision
from tuner.records import Outcome, ProbeRecord, Value
from tuner.spec import resolve

VERDICT: Mapping[str, Any] = {
    "code": "clips",
    "level": "warning",
    "message": "It clips.",
    "evidence": {},
    "action": None,
}


def report(assignment: Assignment, seconds: float = 10.0) -> SlotReport:
    probe = ProbeRecord(seconds, seconds, 0, 1, "test CPU")
    return SlotReport((), 0.0, probe, "", end=ProbeEnd(Outcome.DIVERGED, "loss is nan", Value.of(None)))


def diagnosis_of(
    budget: Mapping[str, Any], seconds: float = 10.0, observer: RecordingObserver | None = None
) -> tuple[Coordinator, Assignment | None]:
    """A job whose only trial diverges after so many seconds, and the run that looks for the reason, if there is one."""
    clock = Clock()
    spec = {"workload": "digits-cnn", "confirm": {"seeds": 0}, "budget": budget, "range_test": False}
    coordinator, _ = coordinate(resolve(spec).job, observer=observer, clock=clock)
    trial = coordinator.next()
    assert trial is not None
    clock.now += seconds
    coordinator.on_report(trial.key, report(trial, seconds))
    return coordinator, coordinator.next()


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [
        ({"trials": 1}, SECONDS),
        ({"trials": 1, "seconds": 22}, 12.0),
        ({"trials": 1, "cost": {"amount": 10, "per_device_hour": 1800}}, 10.0),
    ],
)
def test_it_takes_half_a_minute_or_what_is_left(budget: dict[str, Any], seconds: float) -> None:
    _, assignment = diagnosis_of(budget)
    assert assignment is not None
    assert assignment.fit == "diagnose"
    assert assignment.probe["fit"]["diagnose"]["seconds"] == pytest.approx(seconds)


def test_where_the_budget_is_spent_it_is_not_made_and_the_job_says_so() -> None:
    coordinator, assignment = diagnosis_of({"trials": 1, "seconds": 12})
    assert assignment is None
    assert coordinator.is_finished
    assert NOT_DIAGNOSED in coordinator.result().diagnosis


def test_one_that_does_not_end_is_ended_with_what_it_knows() -> None:
    observer = RecordingObserver()
    coordinator, assignment = diagnosis_of({"trials": 1, "seconds": 22}, observer=observer)
    assert assignment is not None
    going_on = replace(report(assignment, 12.5), end=None, health={"verdicts": [VERDICT]})
    late = replace(report(assignment, 20.0), end=None, health={"verdicts": [VERDICT]})

    assert coordinator.on_report(assignment.key, going_on) == Decision.CONTINUE
    assert coordinator.on_report(assignment.key, late) == Decision.STOP
    coordinator.next()
    assert coordinator.is_finished
    assert "clips" in [finding.code for finding in coordinator.result().diagnosis]
    [(findings, probe)] = observer.diagnoses
    assert ([finding.code for finding in findings], probe.device_seconds) == (["clips"], 20.0)
