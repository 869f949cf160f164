"""What a job may still spend."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.support import Clock, closed, confirmation, job
from tuner.assignment import SlotReport
from tuner.budget import Reserve, Spent, device_seconds_cap, exhausted, may_start
from tuner.jobspec import Budget, Cost
from tuner.ledger import Ledger
from tuner.records import Outcome, ProbeRecord, StopReason

HORIZON = 8192.0


def ledger(
    running: list[SlotReport] | None = None, clock: Clock | None = None, earlier: float = 0.0, **spec: Any
) -> Ledger:
    one = job(**spec)
    return Ledger(one, slots=2, earlier_seconds=earlier, running=lambda: running or [], clock=clock or Clock())


def running(position: float, seconds: float) -> SlotReport:
    return SlotReport((), position, ProbeRecord(seconds, seconds, None, None, "cpu"), "")


@pytest.mark.parametrize(
    ("budget", "spent", "reason"),
    [
        (Budget(trials=3), Spent(trials=2), None),
        (Budget(trials=3), Spent(trials=3), StopReason.TRIALS),
        (Budget(None, full_runs=2.5), Spent(full_runs=2.4), None),
        (Budget(None, full_runs=2.5), Spent(full_runs=2.5), StopReason.FULL_RUNS),
        (Budget(None, seconds=60), Spent(seconds=60), StopReason.SECONDS),
        (Budget(None, device_hours=1), Spent(device_seconds=3599), None),
        (Budget(None, device_hours=1), Spent(device_seconds=3600), StopReason.DEVICE_HOURS),
        (Budget(None, cost=Cost(1.0, 2.0)), Spent(device_seconds=1800), StopReason.COST),
        (Budget(None, device_hours=1, cost=Cost(1.0, 2.0)), Spent(device_seconds=1800), StopReason.COST),
        (Budget(None), Spent(10**6, 1e9, 1e9, 1e9), None),
    ],
)
def test_each_cap_stops_a_start_when_it_is_reached(budget: Budget, spent: Spent, reason: StopReason | None) -> None:
    assert may_start(budget, spent, Reserve()) == reason


def test_the_trial_cap_does_not_end_a_running_probe() -> None:
    assert exhausted(Budget(trials=3), Spent(trials=5), Reserve()) is None


def test_what_is_reserved_counts_as_spent() -> None:
    reserve = Reserve.for_runs(4, seconds_per_run=10, device_share=0.5, slots=2)

    assert reserve == Reserve(4.0, 20.0, 20.0)
    assert exhausted(Budget(None, seconds=60), Spent(seconds=39), reserve) is None
    assert exhausted(Budget(None, seconds=60), Spent(seconds=40), reserve) == StopReason.SECONDS
    assert exhausted(Budget(None, full_runs=10), Spent(full_runs=6), reserve) == StopReason.FULL_RUNS


def test_the_tighter_of_hours_and_cost_counts() -> None:
    assert device_seconds_cap(Budget(None, device_hours=2, cost=Cost(3, 1))) == (7200, StopReason.DEVICE_HOURS)
    assert device_seconds_cap(Budget(None)) is None


def test_running_trials_count_against_the_trial_cap() -> None:
    accounts = ledger(budget={"trials": 3})
    accounts.add_trial(closed(0))

    assert accounts.may_start(1) is None
    assert accounts.may_start(2) == StopReason.TRIALS


def test_a_lost_trial_costs_device_time_but_is_no_trial() -> None:
    accounts = ledger(budget={"trials": 1})
    accounts.add_trial(closed(0, None, Outcome.LOST, seconds=7.0))

    assert accounts.may_start(0) is None
    assert accounts.device_seconds == 7.0


def test_the_positions_of_running_probes_count_against_full_runs() -> None:
    now = [running(HORIZON / 2, 1.0), running(HORIZON / 4, 1.0)]
    accounts = ledger(now, budget={"full_runs": 1.75, "trials": None})
    assert accounts.search_is_cut() is None
    accounts.add_trial(closed(0))

    assert accounts.search_is_cut() == StopReason.FULL_RUNS


def test_the_search_is_cut_early_enough_to_pay_for_confirmation_and_confirmation_may_use_the_rest() -> None:
    accounts = ledger(budget={"full_runs": 20, "trials": None}, confirm={"top": 1, "seeds": 5})
    for number in range(9):
        accounts.add_trial(closed(number))
    assert accounts.search_is_cut() is None
    accounts.add_trial(closed(9))

    assert accounts.search_is_cut() == StopReason.FULL_RUNS
    assert accounts.is_spent() is None
    assert accounts.has_room_for(9)
    assert not accounts.has_room_for(10)


def test_confirmation_that_would_eat_the_budget_is_not_promised() -> None:
    too_dear = ledger(budget={"full_runs": 20, "trials": None}, confirm={"top": 3, "seeds": 5})

    assert not too_dear.can_afford_confirmation()
    for number in range(19):
        too_dear.add_trial(closed(number))
    assert too_dear.search_is_cut() is None


def test_time_before_a_restart_counts_and_the_wall_clock_does_not_matter() -> None:
    clock = Clock(5.0)
    accounts = ledger(clock=clock, earlier=50.0, budget={"seconds": 60, "trials": None})
    clock.now = 14.9
    assert accounts.is_spent() is None
    clock.now = 15.0

    assert accounts.is_spent() == StopReason.SECONDS


def test_a_lost_confirmation_run_is_no_full_run() -> None:
    accounts = ledger(budget={"full_runs": 1, "trials": None})
    accounts.add_confirmation(confirmation(1, 5, None, Outcome.LOST))
    assert accounts.is_spent() is None
    accounts.add_confirmation(confirmation(1, 5, None, Outcome.CRASHED))

    assert accounts.is_spent() == StopReason.FULL_RUNS
