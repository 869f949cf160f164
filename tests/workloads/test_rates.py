"""The learning rate range test: what short runs say, and the runs themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
import torch
from torch import nn

from tests.workloads.support import TinyWorkload, config_for, probe_for
from workloads.contract import ProbeConfig
from workloads.precision_test import measure_precisions
from workloads.range_test import measure_rates
from workloads.rates import MAX_STEPS, MIN_RATES, MIN_STEPS, MIN_TOTAL, Rate, judge, log_spaced, plan
from workloads.training import train

LOW, HIGH = 1e-5, 10.0


def rates(*losses: float | None) -> list[Rate]:
    """Runs at 1e-4, 1e-3, … of batches whose loss is 2 without training."""
    return [Rate(10.0 ** (place - 4), loss) for place, loss in enumerate(losses)]


def test_the_range_reaches_from_below_the_lowest_rate_that_trains_half_way_to_the_first_that_diverges() -> None:
    found = judge(rates(1.99, 1.98, 1.0, 0.5, 2.5, None), 2.0)
    assert found is not None
    assert found.low == pytest.approx(1e-3)
    assert found.high == pytest.approx(math.sqrt(0.1 * 1.0))
    assert found.best == pytest.approx(0.1)
    assert found.diverges_at == 1.0


def test_a_highest_rate_that_trains_bounds_the_range_and_nothing_diverges() -> None:
    found = judge(rates(1.99, 1.98, 1.9, 1.0, 0.5), 2.0)
    assert found is not None
    assert (found.high, found.diverges_at) == (1.0, None)


def test_where_no_rate_lowers_the_loss_there_is_no_range() -> None:
    assert judge(rates(2.0, 2.0, 2.1, None, None), 2.0) is None


@pytest.mark.parametrize("steps", [0, 59, 60, 119, 120, 260, 10_000_000])
def test_a_plan_stays_within_its_steps_and_has_rates_and_steps_enough(steps: int) -> None:
    planned = plan(steps)
    if steps < MIN_TOTAL:
        assert planned is None
        return
    assert planned is not None
    count, each = planned
    assert (count + 1) * each <= steps
    assert count >= MIN_RATES and MIN_STEPS <= each <= MAX_STEPS


def asked(**changes: Any) -> ProbeConfig:
    what = {"low": LOW, "high": HIGH, "runs": 5.0, "seconds": None, **changes}
    return replace(config_for(maximum=1600, dropout=0.1), fit={"rates": what})


def test_the_range_of_short_runs_holds_the_rate_that_is_best_in_full_runs() -> None:
    measured = measure_rates(TinyWorkload(), asked(), probe_for(asked()))

    def loss(lr: float) -> float:
        config = config_for(maximum=1600, lr=lr, dropout=0.1)
        probe = probe_for(config)
        train(TinyWorkload(), config, probe)
        return mean(probe.values("train_loss")[-2:])

    found = judge([Rate(**rate) for rate in measured["rates"]], measured["untrained"])
    best = min(log_spaced(LOW, HIGH, 13), key=loss)
    assert found is not None
    assert found.low <= best <= found.high
    assert found.low > LOW
    assert (len(measured["rates"]) + 1) * measured["steps"] <= 5 * 100


def test_the_same_test_twice_comes_out_the_same() -> None:
    assert measure_rates(TinyWorkload(), asked(), probe_for(asked())) == measure_rates(
        TinyWorkload(), asked(), probe_for(asked())
    )


def test_a_test_that_takes_too_long_says_how_far_it_came() -> None:
    times = iter(range(10_000))
    measured = measure_rates(TinyWorkload(), asked(seconds=350), probe_for(asked()), lambda: float(next(times)))
    assert 0 < len(measured["rates"]) < MIN_RATES
    assert measured["skipped"].startswith(f"{len(measured['rates'])} of ")


class Refusing(TinyWorkload):
    """Its loss raises where the model's weights have grown, as losses do that check what they are given."""

    def __init__(self, error: Exception, at: float = 10.0) -> None:
        super().__init__()
        self.error, self.at = error, at

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        if max(float(p.detach().abs().max()) for p in model.parameters()) > self.at:
            raise self.error
        return super().loss(model, batch)


def test_a_loss_that_raises_at_a_high_rate_counts_as_diverged_there() -> None:
    measured = measure_rates(Refusing(ValueError("not a probability" + "!" * 5000)), asked(), probe_for(asked()))
    reasons = [rate["reason"] for rate in measured["rates"]]
    assert reasons[0] is None
    assert reasons[-1].startswith("ValueError: not a probability")
    assert len(reasons[-1]) <= 200
    found = judge([Rate(**rate) for rate in measured["rates"]], measured["untrained"])
    assert found is not None
    assert found.diverges_at is not None


@pytest.mark.parametrize(
    ("error", "at"), [(ValueError("broken"), 0.0), (RuntimeError("CUDA out of memory"), 10.0)], ids=["always", "memory"]
)
def test_a_loss_that_raises_for_another_reason_than_the_rate_ends_the_test(error: Exception, at: float) -> None:
    with pytest.raises(type(error), match=str(error)):
        measure_rates(Refusing(error, at), asked(), probe_for(asked()))


class SlowToBegin(TinyWorkload):
    """Each model's first loss takes a minute, each of the others a second; by a clock of its own."""

    now = 0.0

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        self.now += 59.0
        return super().model(config)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        self.now += 1.0
        return super().loss(model, batch)


@pytest.mark.parametrize("what", ["rates", "precisions"])
def test_where_first_steps_take_long_short_runs_end_as_soon_as_full_ones_would(what: str) -> None:
    """A full run is 100 steps, 160 s at most; five rates in short runs of ten steps would be six times 70 s."""
    workload = SlowToBegin()
    config = replace(
        asked(runs=0.6), fit={what: {"low": LOW, "high": HIGH, "among": ["fp32", "bf16"], "runs": 0.6, "seconds": None}}
    )
    measure = measure_rates if what == "rates" else measure_precisions

    found = measure(workload, config, probe_for(config), lambda: workload.now)

    assert "that it may take" in found["skipped"]
    assert workload.now <= 2 * 0.6 * 160 + 61


def test_a_share_that_is_too_small_for_five_rates_is_said_and_trains_nothing() -> None:
    workload = TinyWorkload()
    measured = measure_rates(workload, asked(runs=0.4), probe_for(asked()))
    assert (measured["skipped"], measured["rates"]) == ("its share of the budget is 40 steps, and it takes 60", [])
    assert workload.batches == []
