"""The learning rate range test in a job: when it runs, what it costs, and what becomes of what it finds."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from tests.tuner.support import RecordingObserver, coordinate, memory, play_with
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.coordinator import Coordinator
from tuner.foreseen import BY_ITSELF
from tuner.jobspec import ResolvedJob
from tuner.phases import Decision
from tuner.range_phase import SHARE, reason_against
from tuner.records import Outcome, ProbeRecord, Value
from tuner.spec import resolve

RATES = [{"lr": 10.0**place, "loss": loss, "reason": None} for place, loss in ((-4, 1.9), (-3, 1.0))] + [
    {"lr": 1.0, "loss": None, "reason": "training loss at step 3 is nan"}
]


def job(**spec: Any) -> ResolvedJob:
    return resolve(
        {"workload": "digits-cnn", "confirm": {"seeds": 0}, "pruner": "none", "precision": "fp32", **spec}
    ).job


def answer(assignment: Assignment, **end: Any) -> SlotReport:
    """A run's end; that of the range test brings `RATES`, unless `end` is another."""
    probe = ProbeRecord(2.0, 2.0, 0, 1, "test CPU")
    over = ProbeEnd(Outcome.OK, None, Value.of(1.0 / (1 + assignment.probe["trial"] + 1)))
    report = SlotReport((), assignment.probe["fidelity"]["max"], probe, "", end=over)
    if assignment.fit != "rates":
        return report
    return replace(report, **({"fit": {"rates": {"steps": 22, "untrained": 2.0, "rates": RATES}}} | end))


def with_seconds(report: SlotReport, seconds: float) -> SlotReport:
    return replace(report, probe=replace(report.probe, seconds=seconds, device_seconds=seconds))


def play(coordinator: Coordinator, runs: int = 1000, **end: Any) -> list[Assignment]:
    return play_with(coordinator, lambda assignment: answer(assignment, **end), runs)


def test_a_search_begins_with_the_test_over_the_searched_range_and_pays_for_it() -> None:
    coordinator, observer = coordinate(job())

    given = play(coordinator)

    assert [assignment.fit for assignment in given] == ["rates", *[None] * 40]
    asked = given[0].probe["fit"]["rates"]
    assert (asked["low"], asked["high"], asked["seconds"]) == (1e-4, 1.0, None)
    assert asked["runs"] <= SHARE * 40
    (found,) = observer.rates
    assert (found["state"], found["best"], found["diverges_at"]) == ("done", 1e-3, 1.0)
    assert coordinator.result().device_seconds == 2.0 * len(given)


@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_after_the_baseline_the_rate_in_the_middle_of_those_that_train_is_tried_before_any_other(sampler: str) -> None:
    coordinator, observer = coordinate(job(sampler=sampler, baseline={"lr": 0.5, "weight_decay": 0.9}))

    given = play(coordinator)

    first, second, third = (assignment.probe["parameters"] for assignment in given[1:4])
    (found,) = observer.rates
    assert second["lr"] == found["tries"] == pytest.approx(math.sqrt(found["low"] * found["high"]))
    assert second == {**first, "lr": second["lr"], "weight_decay": 0.3}, "the baseline, as far as it is searched"
    assert third["lr"] != second["lr"]
    assert len(given) == 41, "it counts as a trial"


def test_a_rate_that_the_baseline_has_already_is_not_tried_again() -> None:
    coordinator, observer = coordinate(job(baseline={"lr": 0.002}))
    given = play(coordinator, runs=3)
    assert observer.rates[0]["tries"] is None
    assert given[2].probe["parameters"]["lr"] != given[1].probe["parameters"]["lr"]


def test_a_suggestion_that_was_queued_before_a_death_is_queued_once() -> None:
    storage = memory()
    died, observer = coordinate(job(), storage)
    play(died, runs=2)
    again, _ = coordinate(job(), storage)
    again._context.search.suggest({"lr": 0.1}, "rates")

    rates = [assignment.probe["parameters"]["lr"] for assignment in play(again)]

    assert rates.count(observer.rates[0]["tries"]) == 1
    assert 0.1 not in rates


def test_an_attempt_after_the_test_does_not_make_it_again_and_one_in_the_middle_of_it_does() -> None:
    storage = memory()
    died, _ = coordinate(job(), storage)
    assert died.next() is not None

    second, observer = coordinate(job(), storage)
    given = play(second, runs=3)
    third, unheard = coordinate(job(), storage)
    rest = play(third)

    assert [assignment.fit for assignment in given] == ["rates", None, None]
    assert json.loads(json.dumps(observer.rates[0])) == observer.rates[0]
    assert unheard.rates == []
    assert all(assignment.fit is None for assignment in rest)
    assert third.result().device_seconds == 2.0 * 41


def test_a_test_that_fails_is_said_and_the_search_goes_on() -> None:
    coordinator, observer = coordinate(job())
    crashed = ProbeEnd(Outcome.CRASHED, "ValueError: no", Value.of(None))

    given = play(coordinator, end=crashed, fit={"stage": None})

    assert len(given) == 41
    assert (observer.rates[0]["state"], observer.rates[0]["reason"]) == (
        "skipped",
        "its run ended crashed: ValueError: no",
    )


def test_a_cancelled_job_is_not_told_that_the_test_failed() -> None:
    observer = RecordingObserver()
    coordinator, _ = coordinate(job(), observer=observer)
    assignment = coordinator.next()
    assert assignment is not None
    coordinator._context.is_cancelled = True

    coordinator.on_report(assignment.key, replace(answer(assignment), end=None, fit=None))
    play(coordinator)

    assert coordinator.is_finished
    assert observer.rates == []
    assert observer.started == []


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"range_test": False}, "range_test is false"),
        ({"workload": "quadratic"}, "quadratic trains by itself"),
        ({"search": {"lr": 0.1}}, "lr is not searched over a range"),
        ({"search": {"lr": {"choices": [0.1, 0.2]}}}, "lr is not searched over a range"),
        ({"budget": {"trials": 3}}, "its share of the budget is 38 steps, and it takes 60"),
        ({"budget": {"full_runs": 3, "trials": 40}}, "its share of the budget is 38 steps, and it takes 60"),
    ],
)
def test_why_there_is_no_test_is_said(spec: dict[str, Any], reason: str) -> None:
    coordinator, observer = coordinate(job(**spec))
    given = play(coordinator, runs=1)
    assert given[0].fit is None
    assert [(found["state"], found["reason"]) for found in observer.rates] == [("skipped", reason)]


@pytest.mark.parametrize(
    "budget",
    [{"seconds": 100.0}, {"device_hours": 100 / 3600}, {"cost": {"amount": 1.0, "per_device_hour": 36.0}}],
    ids=["seconds", "device hours", "cost"],
)
def test_a_budget_in_time_or_money_limits_its_seconds_and_ends_it_where_it_does_not_end(budget: dict[str, Any]) -> None:
    coordinator, observer = coordinate(job(budget={"trials": 40, **budget}))
    assignment = coordinator.next()
    assert assignment is not None
    assert assignment.probe["fit"]["rates"]["seconds"] == pytest.approx(BY_ITSELF * 5.0)

    said = answer(assignment, end=None, fit=None)
    assert coordinator.on_report(assignment.key, with_seconds(said, 4.9)) == Decision.CONTINUE
    assert coordinator.on_report(assignment.key, with_seconds(said, 5.1)) == Decision.STOP
    assert observer.rates[0]["reason"] == "its run ended timed_out: it was not over after 5 s"
    assert coordinator.next() is not None
    assert coordinator.result().device_seconds == 5.1


def test_a_pausing_search_is_promised_less_than_a_full_run_a_trial() -> None:
    assert reason_against(job(budget={"trials": 6})) is None
    assert reason_against(job(budget={"trials": 6}, pruner="auto")) is not None


def test_a_job_that_recommends_nothing_is_told_at_which_rates_it_trains() -> None:
    coordinator, _ = coordinate(job())
    play(coordinator)
    phase = coordinator._range_phase
    assert phase is not None and phase.finding is not None
    assert phase.finding.code == "rate_range"
    assert "diverges at 1 and above" in phase.finding.message
