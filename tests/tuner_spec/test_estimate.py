"""What a job will take, before it runs."""

from __future__ import annotations

from typing import Any

from tuner.estimate import Estimate
from tuner.spec import resolve


def expected(seconds_per_full_run: float | None = None, **spec: Any) -> Estimate:
    return resolve(spec, seconds_per_full_run=seconds_per_full_run).estimate


def test_trials_and_confirmation_add_up_to_full_runs() -> None:
    assert expected(budget={"trials": 24}) == Estimate(trials=24, confirmation_runs=20, full_runs=44.0)


def test_confirmation_is_reserved_before_trials() -> None:
    assert expected(budget={"full_runs": 50}).trials == 30


def test_a_budget_below_confirmation_leaves_no_trials() -> None:
    assert expected(budget={"full_runs": 12}) == Estimate(trials=0, confirmation_runs=20, full_runs=12.0)


def test_without_a_measured_run_a_time_cap_says_nothing_about_trials() -> None:
    assert expected(budget={"seconds": 600}) == Estimate(trials=None, confirmation_runs=20, full_runs=None)


def test_a_measured_run_gives_device_hours_and_cost() -> None:
    budget = {"trials": 16, "cost": {"amount": 1000, "per_device_hour": 2}}

    estimate = expected(3600.0, budget=budget, confirm={"top": 0}, resources={"gpus": 0.5})

    assert estimate == Estimate(trials=16, confirmation_runs=0, full_runs=16.0, device_hours=8.0, cost=16.0)


def test_the_tightest_cap_decides() -> None:
    budget = {"trials": 100, "device_hours": 30, "cost": {"amount": 50, "per_device_hour": 2}}

    assert expected(3600.0, budget=budget).trials == 5


def test_on_the_seconds_axis_the_time_of_a_full_run_is_known() -> None:
    estimate = expected(fidelity={"axis": "seconds", "max": 36}, budget={"trials": 80})

    assert estimate.device_hours == 1.0


def test_absurd_numbers_give_an_unknown_rather_than_an_overflow() -> None:
    budget = {"cost": {"amount": 1e308, "per_device_hour": 1e-308}}

    estimate = expected(fidelity={"axis": "seconds", "max": 5e-324}, budget=budget)

    assert estimate.trials is not None
    assert estimate.to_json()["confirmation_runs"] == 20
