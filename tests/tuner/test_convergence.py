"""When a search has nothing left to gain: conservative, and only by noise that is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tuner.convergence import NEXT, is_converged, seed_noise
from tuner.freeze_thaw import FreezeThaw
from tuner.unit_space import Listed

POINTS = np.random.default_rng(0).random((400, 2))


def searched(trials: int, noise: float = 0.02) -> FreezeThaw:
    """A search in a bowl with whole runs only."""
    rng = np.random.default_rng(1)
    search = FreezeThaw(Listed(POINTS), 2, rungs=(1.0,))
    for _ in range(trials):
        step = search.propose()
        assert step is not None
        search.observe(step.trial, float(((step_point(search, step.trial) - 0.4) ** 2).sum() + rng.normal(0, noise)))
    return search


def step_point(search: FreezeThaw, trial: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return search.trials[trial].point


def test_the_expected_gain_falls_as_the_search_goes_on_and_is_not_known_at_first() -> None:
    assert searched(10).expected_gain() is None
    few, many = searched(20).expected_gain(), searched(150).expected_gain()
    assert few is not None
    assert many is not None
    assert 0 <= many < few


def test_asking_for_the_gain_changes_no_decision() -> None:
    asked, left = searched(40), searched(40)
    asked.expected_gain()
    assert [asked.propose() for _ in range(3)] == [left.propose() for _ in range(3)]


def test_it_ends_when_ten_more_gain_less_than_the_noise() -> None:
    gain = 0.001
    assert is_converged(gain, NEXT * gain * 1.01)
    assert not is_converged(gain, NEXT * gain * 0.99)


@pytest.mark.parametrize(("gain", "noise"), [(None, 1.0), (0.0, None), (0.0, 0.0), (math.nan, 1.0)])
def test_what_is_not_known_ends_no_search(gain: float | None, noise: float | None) -> None:
    assert not is_converged(gain, noise)


def test_the_noise_between_seeds_is_pooled_over_configurations_of_any_level() -> None:
    rng = np.random.default_rng(3)
    groups = [list(level + rng.normal(0, 0.1, 5)) for level in (1.0, 5.0, 9.0, 20.0)]
    assert seed_noise(groups) == pytest.approx(0.1, rel=0.4)
    assert seed_noise([[1.0, 1.1], [2.0]]) is None
    assert seed_noise([[1.0, math.nan, math.inf]]) is None
