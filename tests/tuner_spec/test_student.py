"""Our t distribution against SciPy's."""

from __future__ import annotations

import math

import pytest

from tuner.student import incomplete_beta, upper_quantile, upper_tail

stats = pytest.importorskip("scipy.stats")
special = pytest.importorskip("scipy.special")


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 12, 63, 500])
@pytest.mark.parametrize("t", [-50.0, -3.0, -1e-3, 0.0, 1e-12, 0.1, 1.0, 2.776, 10.0, 300.0, 1e12])
def test_tails_agree_with_scipy(t: float, freedom: int) -> None:
    assert upper_tail(t, freedom) == pytest.approx(stats.t.sf(t, freedom), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("freedom", [1, 2, 4, 7, 63])
@pytest.mark.parametrize("tail", [0.5, 0.3, 0.05, 0.025, 0.025 / 3, 0.0025, 1e-6])
def test_quantiles_agree_with_scipy(tail: float, freedom: int) -> None:
    assert upper_quantile(tail, freedom) == pytest.approx(stats.t.isf(tail, freedom), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("a", [0.5, 1.0, 2.5, 30.0])
@pytest.mark.parametrize("b", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("x", [0.0, 1e-9, 0.2, 0.5, 0.9, 1.0])
def test_the_incomplete_beta_function_agrees_with_scipy(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-10, abs=1e-300)


def test_infinite_t_is_certain() -> None:
    assert (upper_tail(math.inf, 4), upper_tail(-math.inf, 4), upper_tail(1e200, 4)) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize("tail", [0.0, -0.1, 0.6])
def test_a_quantile_of_no_probability_is_refused(tail: float) -> None:
    with pytest.raises(ValueError, match="tail"):
        upper_quantile(tail, 4)
