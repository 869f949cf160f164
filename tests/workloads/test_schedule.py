"""The learning rate of each step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.workloads.support import TinyWorkload, config_for, probe_for
from workloads.schedule import learning_rate
from workloads.settings import Settings


def trace(steps: int, **parameters: Any) -> list[float]:
    settings = Settings.of(config_for(**parameters))
    return [learning_rate(settings, step, step / steps, steps) for step in range(1, steps + 1)]


def test_warmup_rises_linearly_to_the_peak_and_the_cosine_ends_at_the_minimum() -> None:
    rates = trace(100, lr=0.5, warmup=0.1, lr_min=0.01)
    assert rates[:10] == pytest.approx([0.05 * step for step in range(1, 11)])
    expected = [0.01 + 0.49 * (1 + math.cos(math.pi * (step - 10) / 90)) / 2 for step in range(10, 101)]
    assert rates[9:] == pytest.approx(expected)
    assert rates[-1] == pytest.approx(0.01)


def test_warmup_in_steps_starts_where_it_is_told() -> None:
    rates = trace(100, lr=1.0, warmup={"steps": 20, "start": 0.5})
    assert rates[:20] == pytest.approx([0.5 + 0.5 * step / 20 for step in range(1, 21)])
    assert rates[-1] == pytest.approx(0.0)


def test_a_warmup_fraction_may_have_a_start() -> None:
    rates = trace(100, lr=1.0, warmup={"fraction": 0.2, "start": 0.5}, lr_min=0.1)
    assert rates[:20] == pytest.approx([0.5 + 0.5 * step / 20 for step in range(1, 21)])
    assert rates[20:] == trace(100, lr=1.0, warmup=0.2, lr_min=0.1)[20:]


def test_warmup_in_steps_starts_at_zero_unless_told() -> None:
    assert trace(10, lr=1.0, warmup={"steps": 5})[0] == pytest.approx(0.2)


def test_no_warmup_starts_near_the_peak() -> None:
    assert trace(1000, lr=1.0, warmup=0)[0] == pytest.approx(1.0, abs=1e-4)


def test_a_warmup_longer_than_the_run_never_reaches_the_peak() -> None:
    assert trace(10, lr=1.0, warmup={"steps": 20})[-1] == pytest.approx(0.5)
    assert trace(10, lr=1.0, warmup=1.0)[-1] == pytest.approx(1.0)


def test_a_minimum_above_the_peak_is_the_peak() -> None:
    assert trace(10, lr=0.1, warmup=0, lr_min=5.0) == pytest.approx([0.1] * 10)


def test_where_the_clock_ends_the_run_a_warmup_in_steps_counts_steps() -> None:
    settings = Settings.of(config_for(lr=1.0, warmup={"steps": 4}))
    assert [learning_rate(settings, step, 0.0, None) for step in (1, 2, 4)] == pytest.approx([0.25, 0.5, 1.0])
    assert learning_rate(settings, 50, 0.5, None) == pytest.approx(0.5)


def test_the_loop_uses_the_schedule() -> None:
    config = config_for(axis="steps", maximum=20, reports=20, lr=0.1, warmup=0.25, lr_min=0.02)
    probe = probe_for(config)
    TinyWorkload().run(config, probe)
    assert probe.values("lr") == trace(20, lr=0.1, warmup=0.25, lr_min=0.02)
