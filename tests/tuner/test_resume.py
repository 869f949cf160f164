"""Taking a study up again: whenever its runner dies, totals come out exact and nothing is tried twice for nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from tests.tuner.support import Clock, RecordingObserver, ScriptedSlots, coordinate, job, memory, stored
from tuner.records import Outcome
from tuner.search import Search

JOB = job(budget={"trials": 12}, sampler="random", confirm={"top": 2, "seeds": 5})


class RunnerDied(BaseException):
    """Stands for kill -9."""


class DyingStorage(optuna.storages.InMemoryStorage):
    """A storage whose owner dies just before or just after its n-th write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes_left: int | None = None
        self.after = False

    def _write(self, write: Callable[[], Any]) -> Any:
        if self.writes_left is None:
            return write()
        self.writes_left -= 1
        if self.writes_left >= 0:
            return write()
        if self.after:
            write()
        raise RunnerDied

    def create_new_trial(self, study_id: int, template_trial: Any = None) -> int:
        number: int = self._write(lambda: super(DyingStorage, self).create_new_trial(study_id, template_trial))
        return number

    def set_trial_param(self, *args: Any) -> None:
        self._write(lambda: super(DyingStorage, self).set_trial_param(*args))

    def set_trial_state_values(self, *args: Any, **kwargs: Any) -> bool:
        done: bool = self._write(lambda: super(DyingStorage, self).set_trial_state_values(*args, **kwargs))
        return done

    def set_trial_user_attr(self, *args: Any) -> None:
        self._write(lambda: super(DyingStorage, self).set_trial_user_attr(*args))


def check_totals(storage: optuna.storages.BaseStorage, budget: int = 12) -> None:
    """What has to hold of every finished study, whatever happened on the way."""
    trials = stored(storage)
    assert {trial.state for trial in trials} <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}
    ends = [trial.user_attrs["end"]["outcome"] for trial in trials]
    assert sum(end != Outcome.LOST for end in ends) == budget
    starts = [trial.user_attrs.get("start", {}) for trial in trials]
    baselines = [end for start, end in zip(starts, ends, strict=True) if start.get("is_baseline")]
    assert [end for end in baselines if end != Outcome.LOST] == ["ok"]
    tried = [str(start["parameters"]) for start, end in zip(starts, ends, strict=True) if end != Outcome.LOST]
    assert len(set(tried)) == budget


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("turns", [1, 2, 7, 20])
def test_a_study_dropped_half_way_is_finished_by_the_next_runner(slots: int, turns: int) -> None:
    storage = memory()
    first, seen = coordinate(JOB, storage, slots=slots)
    half = ScriptedSlots(first, slots)
    for _ in range(turns):
        half.turn()
    open_now = len(seen.started) - len(seen.ended)

    second, observer = coordinate(JOB, storage, slots=slots)
    ScriptedSlots(second, slots).play()

    check_totals(storage)
    assert observer.outcomes["lost"] == open_now
    assert sum(started.retry_of is not None for started in observer.started) == open_now
    assert second.result().verdict == "recommended"


def test_a_runner_may_die_again_and_again() -> None:
    storage = memory()
    for _ in range(6):
        coordinator, _ = coordinate(JOB, storage, slots=2)
        slots = ScriptedSlots(coordinator, 2)
        for _ in range(9):
            slots.turn()

    coordinator, _ = coordinate(JOB, storage, slots=2)
    ScriptedSlots(coordinator, 2).play()

    check_totals(storage)


@pytest.mark.parametrize("after", [False, True])
def test_a_death_between_any_two_writes_loses_nothing(after: bool) -> None:
    lost_retries = []
    for writes in range(60):
        storage = DyingStorage()
        storage.writes_left, storage.after = writes, after
        told = RecordingObserver()
        with pytest.raises(RunnerDied):
            coordinator, _ = coordinate(JOB, storage, observer=told, slots=2)
            ScriptedSlots(coordinator, 2).play()
        storage.writes_left = None

        second, observer = coordinate(JOB, storage, slots=2)
        ScriptedSlots(second, 2).play()

        check_totals(storage)
        open_there = {one.number for one in told.started} - {one.number for one in told.ended}
        assert open_there <= {one.number for one in observer.ended}, f"after {writes} writes"
        closed_there = {one.number for one in told.ended if one.outcome != Outcome.LOST}
        told_again = [one.number for one in observer.ended if one.number in closed_there]
        lost_retries.extend(told_again)
    assert len(lost_retries) <= 60 // 5  # only a death between an end told and its first write makes it lost after all


@pytest.mark.parametrize("writes", range(1, 12))
def test_a_death_while_taking_up_a_study_loses_nothing_either(writes: int) -> None:
    storage = DyingStorage()
    first, _ = coordinate(JOB, storage, slots=3)
    half = ScriptedSlots(first, 3)
    for _ in range(7):
        half.turn()
    storage.writes_left = writes
    with pytest.raises(RunnerDied):
        coordinator, _ = coordinate(JOB, storage, slots=3)
        ScriptedSlots(coordinator, 3).play()
    storage.writes_left = None

    last, _ = coordinate(JOB, storage, slots=3)
    ScriptedSlots(last, 3).play()

    check_totals(storage)
    queued = [trial.user_attrs.get("queued", {}).get("retry_of") for trial in stored(storage)]
    retried = [number for number in queued if number is not None]
    assert len(retried) == len(set(retried))


def test_confirmation_goes_on_where_it_was() -> None:
    storage = memory()
    first, seen = coordinate(JOB, storage, slots=2)
    ScriptedSlots(first, 2).play(until=lambda: len(seen.confirmations) == 7)

    second, observer = coordinate(JOB, storage, slots=2, confirmations=list(seen.confirmations))
    ScriptedSlots(second, 2).play()

    runs = [(run.trial, run.seed) for run in [*seen.confirmations, *observer.confirmations]]
    assert len(runs) == len(set(runs)) == 15
    assert observer.started == []
    assert second.result().recipes[0].status == "proven"


def test_time_spent_before_a_death_counts() -> None:
    storage, clock = memory(), Clock()
    one = job(budget={"seconds": 100, "trials": None})
    first, seen = coordinate(one, storage, clock=clock)
    ScriptedSlots(first, clock=clock).play(until=lambda: len(seen.ended) == 10)
    spent = clock.now - 1000.0

    later = Clock(5.0)
    second, _ = coordinate(one, storage, clock=later)
    ScriptedSlots(second, clock=later).play()

    assert spent + later.now - 5.0 == pytest.approx(100, abs=6)


def test_a_finished_study_is_taken_up_without_a_run() -> None:
    storage = memory()
    first, seen = coordinate(JOB, storage)
    ScriptedSlots(first).play()

    second, _ = coordinate(JOB, storage, confirmations=list(seen.confirmations))
    again = ScriptedSlots(second)
    again.play()

    assert again.given == []
    assert second.result().recipes == first.result().recipes


class LockedOnce(optuna.storages.InMemoryStorage):
    """Says that SQLite is locked, once, half way through an ask."""

    is_due = False

    def set_trial_param(self, *args: Any) -> None:
        if self.is_due:
            self.is_due = False
            raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))
        super().set_trial_param(*args)


def test_a_database_locked_in_the_middle_of_an_ask_costs_no_configuration() -> None:
    storage = LockedOnce()
    search = Search(JOB, "job", storage)
    search.resume()
    storage.is_due = True

    baseline = search.ask()

    assert baseline.is_baseline
    assert [trial.state for trial in stored(storage)] == [TrialState.FAIL, TrialState.RUNNING]
