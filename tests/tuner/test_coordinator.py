"""Whole studies played through without processes: the phases, the budget, the study in the database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.tuner.support import (
    Clock,
    RecordingObserver,
    ScriptedSlots,
    bowl,
    coordinate,
    job,
    memory,
    stored,
)
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.coordinator import MAX_LOST_IN_ROW, SlotsDyingError
from tuner.phases import Decision
from tuner.records import Outcome, Phase, ProbeRecord, StopReason, Value
from tuner.search import open_storage

CONFIRMED = {"confirm": {"top": 2, "seeds": 5}}


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[optuna.storages.BaseStorage]:
    if request.param == "memory":
        yield memory()
        return
    is_sqlite = request.param == "sqlite"
    in_sql = open_storage(
        f"sqlite:///{tmp_path / 'study.db'}" if is_sqlite else request.getfixturevalue("postgres_url")
    )
    yield in_sql
    in_sql.remove_session()
    in_sql.engine.dispose()


def ends_as(outcome: Outcome, *numbers: int) -> Any:
    def end(assignment: Assignment) -> ProbeEnd | None:
        if not numbers or assignment.probe["trial"] in numbers:
            return ProbeEnd(outcome, "as the test wants it", Value.of(None))
        return None

    return end


def test_the_baseline_comes_first_and_every_trial_is_in_the_study(storage: optuna.storages.BaseStorage) -> None:
    coordinator, observer = coordinate(job(budget={"trials": 5}), storage)

    ScriptedSlots(coordinator).play()

    assert [started.is_baseline for started in observer.started] == [True, False, False, False, False]
    assert observer.started[0].parameters["lr"] == 1e-3
    trials = stored(storage)
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 5
    assert [list(trial.intermediate_values) for trial in trials] == [[5, 10, 15, 20]] * 5
    assert [trial.value for trial in trials] == [ended.value.number for ended in observer.ended]


@pytest.mark.parametrize("slots", [1, 3])
def test_with_pruning_the_budget_comes_out_exact(slots: int, storage: optuna.storages.BaseStorage) -> None:
    one = job(budget={"trials": 20}, pruner="median", sampler="random")
    coordinator, observer = coordinate(one, storage, slots=slots)

    ScriptedSlots(coordinator, slots).play()

    assert observer.outcomes.total() == 20
    assert observer.outcomes["pruned"] > 1
    states = [trial.state for trial in stored(storage)]
    assert states.count(TrialState.PRUNED) == observer.outcomes["pruned"]
    assert states.count(TrialState.COMPLETE) == observer.outcomes["ok"]
    pruned = [trial for trial in stored(storage) if trial.state == TrialState.PRUNED]
    assert all(0 < len(trial.intermediate_values) < 4 for trial in pruned)
    assert coordinator.result().stop_reason == StopReason.TRIALS


def test_what_is_proven_is_recommended_though_the_seed_has_no_effect() -> None:
    coordinator, _ = coordinate(job(budget={"trials": 8}, **CONFIRMED))

    ScriptedSlots(coordinator, curve=lambda run: [abs(run.probe["parameters"]["lr"] - 0.01) + 1.0] * 4).play()

    result = coordinator.result()
    assert result.recipes[0].status == "proven"
    assert [finding.code for finding in result.diagnosis] == ["seed_has_no_effect"]
    assert result.verdict == "recommended"


def test_the_search_goes_on_to_confirmation_and_to_a_proven_recipe(storage: optuna.storages.BaseStorage) -> None:
    coordinator, observer = coordinate(job(budget={"trials": 8}, **CONFIRMED), storage, slots=2)
    slots = ScriptedSlots(coordinator, 2)

    slots.play()

    assert observer.phases == [Phase.SEARCH, Phase.CONFIRM]
    runs = [given for given in slots.given if not given.judged]
    assert {(run.probe["trial"], run.probe["seed"]) for run in runs} == {
        (confirmed.trial, confirmed.seed) for confirmed in observer.confirmations
    }
    assert len(runs) == 15
    assert {run.probe["split"] for run in runs} == {"test"}
    result = coordinator.result()
    assert (result.verdict, result.recipes[0].status, result.recipes[0].seeds) == ("recommended", "proven", 5)
    assert len(stored(storage)) == 8


@pytest.mark.parametrize("always", [True, False])
def test_where_nothing_beats_the_baseline_it_is_confirmed_only_if_asked(always: bool) -> None:
    confirm = {"top": 2, "seeds": 4, "always": always}
    coordinator, observer = coordinate(job(budget={"trials": 4}, baseline={"lr": 0.01}, confirm=confirm))

    ScriptedSlots(coordinator, curve=lambda run: [1.0 + (run.probe["parameters"]["lr"] != 0.01)] * 4).play()

    assert [run.is_baseline for run in observer.confirmations] == [True] * (4 if always else 0)
    result = coordinator.result()
    assert (result.verdict, result.recipes) == ("no_recommendation", [])
    assert result.diagnosis


def test_nan_at_a_report_ends_that_trial_alone(storage: optuna.storages.BaseStorage) -> None:
    def curve(assignment: Assignment) -> list[float]:
        values = bowl(assignment)
        return [*values[:2], float("nan"), values[3]] if assignment.probe["trial"] == 2 else values

    coordinator, observer = coordinate(job(budget={"trials": 4}), storage)
    ScriptedSlots(coordinator, curve=curve).play()

    assert [str(ended.outcome) for ended in observer.ended] == ["ok", "ok", "diverged", "ok"]
    third = stored(storage)[2]
    assert third.state == TrialState.PRUNED
    assert list(third.intermediate_values) == [5, 10, 15]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome.DIVERGED, TrialState.PRUNED),
        (Outcome.OUT_OF_MEMORY, TrialState.PRUNED),
        (Outcome.CRASHED, TrialState.FAIL),
        (Outcome.NO_METRIC, TrialState.FAIL),
        (Outcome.TIMED_OUT, TrialState.FAIL),
        (Outcome.CANCELLED, TrialState.FAIL),
    ],
)
def test_the_study_is_told_each_outcome_as_the_sampler_should_see_it(outcome: Outcome, state: TrialState) -> None:
    storage = memory()
    coordinator, observer = coordinate(job(budget={"trials": 3}), storage)

    ScriptedSlots(coordinator, end=ends_as(outcome, 1)).play()

    assert [trial.state for trial in stored(storage)] == [TrialState.COMPLETE, state, TrialState.COMPLETE]
    assert observer.ended[1].outcome == outcome


def test_a_lost_trial_is_tried_once_more_and_not_counted(storage: optuna.storages.BaseStorage) -> None:
    coordinator, observer = coordinate(job(budget={"trials": 4}), storage)

    ScriptedSlots(coordinator, end=ends_as(Outcome.LOST, 1)).play()

    assert [str(ended.outcome) for ended in observer.ended] == ["ok", "lost", "ok", "ok", "ok"]
    retry = observer.started[2]
    assert (retry.retry_of, retry.parameters) == (1, observer.started[1].parameters)
    assert stored(storage)[1].state == TrialState.FAIL


def test_a_trial_lost_twice_is_given_up(storage: optuna.storages.BaseStorage) -> None:
    coordinator, observer = coordinate(job(budget={"trials": 4}), storage)

    ScriptedSlots(coordinator, end=ends_as(Outcome.LOST, 1, 2)).play()

    assert [started.retry_of for started in observer.started] == [None, None, 1, None, None, None]
    assert observer.outcomes == {"ok": 4, "lost": 2}


def test_a_lost_baseline_stays_the_baseline() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 4}, **CONFIRMED))

    ScriptedSlots(coordinator, end=ends_as(Outcome.LOST, 0)).play()

    assert [started.is_baseline for started in observer.started][:3] == [True, True, False]
    assert coordinator.result().recipes[0].baseline_value is not None


def test_what_a_lost_trial_has_cost_and_said_is_kept() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 1}))

    ScriptedSlots(coordinator, end=ends_as(Outcome.LOST, 0)).play()

    lost, retried = observer.ended
    assert lost.probe is not None
    assert retried.probe is not None
    assert (lost.probe.device_seconds, lost.log_tail) == (5.0, "log")
    assert coordinator.result().device_seconds == 10.0


def test_slots_that_only_die_end_the_study_with_an_error() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 100}))

    with pytest.raises(SlotsDyingError, match="9 runs in a row were lost; the last: as the test wants it"):
        ScriptedSlots(coordinator, end=ends_as(Outcome.LOST)).play()

    assert observer.outcomes == {"lost": MAX_LOST_IN_ROW + 1}


def test_a_confirmation_run_lost_once_is_made_again_and_lost_twice_counts_as_failed() -> None:
    lost: list[str] = []

    def end(assignment: Assignment) -> ProbeEnd | None:
        is_first = assignment.probe["split"] == "test" and assignment.probe["trial"] == 0
        if not is_first or (len(lost) > 2):
            return None
        lost.append(assignment.key)
        return ProbeEnd(Outcome.LOST, "gone", Value.of(None))

    coordinator, observer = coordinate(job(budget={"trials": 6}, **CONFIRMED))
    ScriptedSlots(coordinator, end=end).play()

    crashed = [run for run in observer.confirmations if run.outcome == Outcome.CRASHED]
    assert [run.reason for run in crashed] == ["lost twice: gone"]
    assert len({(run.trial, run.seed) for run in observer.confirmations}) == len(observer.confirmations)


def test_too_many_failures_in_a_row_fail_the_job_and_say_how_many() -> None:
    one = job(budget={"trials": 50}, limits={"max_failures": 3})
    coordinator, observer = coordinate(one, slots=4)

    ScriptedSlots(
        coordinator, 4, curve=lambda a: [1.0] * 2 * (1 + a.probe["trial"]), end=ends_as(Outcome.CRASHED)
    ).play()

    result = coordinator.result()
    assert (result.failed, result.stop_reason) == (True, StopReason.FAILURES)
    assert result.error is not None
    assert result.error.startswith("3 trials in a row failed; the last: trial ")
    assert [(finding.code, finding.message) for finding in result.diagnosis] == [("failures", result.error)]
    assert observer.outcomes == {"crashed": 3, "cancelled": 3}
    reasons = {ended.reason for ended in observer.ended if ended.outcome == Outcome.CANCELLED}
    assert reasons == {"3 trials in a row failed"}


def test_a_failure_now_and_then_is_no_reason_to_fail() -> None:
    one = job(budget={"trials": 12}, limits={"max_failures": 2})
    coordinator, observer = coordinate(one)

    ScriptedSlots(coordinator, end=ends_as(Outcome.CRASHED, *range(1, 12, 2))).play()

    assert observer.outcomes == {"ok": 6, "crashed": 6}
    assert not coordinator.result().failed


def test_a_cancelled_job_ends_its_trials_at_their_next_report_and_keeps_its_recipes() -> None:
    clock = Clock()
    observer = RecordingObserver()
    coordinator, _ = coordinate(job(budget={"trials": 50}, **CONFIRMED), observer=observer, slots=2, clock=clock)
    slots = ScriptedSlots(coordinator, 2, clock=clock)
    slots.play(until=lambda: len(observer.points) == 26)

    observer.stop = StopReason.CANCELLED
    clock.now += 1.0
    slots.play(turns=3)

    assert observer.outcomes["cancelled"] == 2
    result = coordinator.result()
    assert (result.stop_reason, result.verdict, bool(result.recipes)) == (StopReason.CANCELLED, None, True)
    assert observer.phases == [Phase.SEARCH]


def test_cancelling_in_confirmation_ends_it_too() -> None:
    clock = Clock()
    observer = RecordingObserver()
    coordinator, _ = coordinate(job(budget={"trials": 6}, **CONFIRMED), observer=observer, clock=clock)
    slots = ScriptedSlots(coordinator, clock=clock)
    slots.play(until=lambda: len(observer.confirmations) >= 3)

    observer.stop = StopReason.CANCELLED
    clock.now += 1.0
    slots.play(turns=4)

    assert coordinator.result().stop_reason == StopReason.CANCELLED


def test_a_job_cancelled_while_its_runs_wait_for_slots_ends_without_them() -> None:
    clock, observer = Clock(), RecordingObserver()
    coordinator, _ = coordinate(job(budget={"trials": 50}), observer=observer, slots=2, clock=clock)
    assert coordinator.next()
    assert coordinator.next()

    observer.stop = StopReason.CANCELLED
    clock.now += 1.0
    coordinator.tend()

    assert observer.outcomes == {"cancelled": 2}
    assert coordinator.is_finished


def test_tending_asks_the_observer_about_once_a_second_and_lets_its_exceptions_through() -> None:
    asked: list[float] = []
    clock, observer = Clock(), RecordingObserver()
    observer.at["stop_requested"] = lambda: asked.append(clock.now)
    coordinator, _ = coordinate(job(), observer=observer, clock=clock)
    for _ in range(40):
        coordinator.tend()
        clock.now += 0.1
    observer.at["stop_requested"] = lambda: (_ for _ in ()).throw(PermissionError)
    clock.now += 1.0

    assert 3 <= len(asked) <= 5
    with pytest.raises(PermissionError):
        coordinator.tend()


def test_a_finite_space_ends_exhausted_with_each_configuration_tried_once() -> None:
    search = {"lr": {"choices": [0.001, 0.01, 0.02]}, "batch_size": {"choices": [8, 64]}, "weight_decay": 0.0}
    coordinator, observer = coordinate(job(budget={"trials": 50}, search=search), slots=2)

    ScriptedSlots(coordinator, 2).play()

    assert coordinator.result().stop_reason == StopReason.SPACE_EXHAUSTED
    tried = [(started.parameters["lr"], started.parameters["batch_size"]) for started in observer.started]
    assert len(tried) == len(set(tried)) == 6


def test_where_everything_is_fixed_the_baseline_is_all_there_is() -> None:
    search = {"lr": 0.01, "batch_size": 8, "weight_decay": 0.0}
    coordinator, observer = coordinate(job(budget={"trials": 5}, search=search, baseline=search))

    ScriptedSlots(coordinator).play()

    assert observer.outcomes == {"ok": 1}
    assert [finding.code for finding in coordinator.result().diagnosis] == ["nothing_tried"]


def test_the_time_cap_ends_running_trials() -> None:
    clock = Clock()
    coordinator, observer = coordinate(job(budget={"seconds": 28, "trials": None}), slots=2, clock=clock)

    ScriptedSlots(coordinator, 2, clock=clock).play()

    assert coordinator.result().stop_reason == StopReason.SECONDS
    assert clock.now - 1000.0 == pytest.approx(28, abs=2)
    assert {ended.reason for ended in observer.ended if ended.outcome == Outcome.CANCELLED} == {
        "the budget is spent (budget.seconds)"
    }


def test_full_runs_are_spent_on_search_and_confirmation_together() -> None:
    one = job(budget={"full_runs": 30, "trials": None}, **CONFIRMED)
    coordinator, observer = coordinate(one)

    ScriptedSlots(coordinator).play()

    assert coordinator.result().stop_reason == StopReason.FULL_RUNS
    assert observer.outcomes["ok"] == 15
    assert len(observer.confirmations) == 15


def test_every_trial_diverging_is_a_diagnosis_and_no_failure() -> None:
    coordinator, _ = coordinate(job(budget={"trials": 4}, **CONFIRMED))

    ScriptedSlots(coordinator, curve=lambda _: [float("inf")]).play()

    result = coordinator.result()
    assert (result.verdict, result.failed) == ("no_recommendation", False)
    assert [finding.code for finding in result.diagnosis] == ["all_diverged"]


def test_the_baseline_is_never_pruned() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 20}, pruner="halving", sampler="random"))

    ScriptedSlots(coordinator, curve=lambda a: [9.0] * 4 if a.probe["trial"] == 0 else bowl(a)).play()

    assert observer.ended[0].outcome == Outcome.OK


def test_a_report_of_a_run_that_has_ended_is_answered_with_stop() -> None:
    coordinator, observer = coordinate(job(budget={"trials": 3}))
    report = SlotReport((), 0.0, ProbeRecord(0.0, 0.0, None, None, "cpu"), "")

    assert coordinator.on_report("t99", report) == Decision.STOP
    coordinator.on_lost("t99", "gone")
    assert observer.ended == []


def test_one_slot_and_one_seed_give_one_study() -> None:
    def trials(seed: int) -> list[Any]:
        storage = memory()
        coordinator, _ = coordinate(job(budget={"trials": 15}, pruner="median", seed=seed), storage)
        ScriptedSlots(coordinator).play()
        return [(trial.params, trial.state, trial.intermediate_values) for trial in stored(storage)]

    assert trials(3) == trials(3)
    assert trials(3) != trials(4)


def test_the_observer_hears_of_an_end_before_the_study_so_that_a_lost_lease_leaves_the_study_alone() -> None:
    def lose_the_lease() -> None:
        raise PermissionError("the lease is lost")

    storage, observer = memory(), RecordingObserver()
    coordinator, _ = coordinate(job(budget={"trials": 5}), storage, observer=observer)
    slots = ScriptedSlots(coordinator)
    slots.play(until=lambda: len(observer.ended) == 2)
    before = len(stored(storage)[-1].intermediate_values)
    observer.at |= {"points_reported": lose_the_lease, "trial_ended": lose_the_lease}

    with pytest.raises(PermissionError):
        slots.play()

    last = stored(storage)[-1]
    assert last.state in (TrialState.COMPLETE, TrialState.RUNNING)
    assert len(last.intermediate_values) in (0, before)
