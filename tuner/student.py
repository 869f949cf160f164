"""Student's t distribution with the standard library alone (the API process has no SciPy)."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 1e-15
_MAX_TERMS = 10_000


def upper_tail(t: float, freedom: int) -> float:
    """P(T > t) for T with `freedom` degrees of freedom; t may be infinite."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    tail = 0.5 * _beta_of_t(t, freedom)
    return tail if t > 0 else 1.0 - tail


@lru_cache(maxsize=1024)
def upper_quantile(tail: float, freedom: int) -> float:
    """The t with P(T > t) = `tail`, for 0 < `tail` <= 0.5."""
    if not 0 < tail <= 0.5:
        raise ValueError(f"tail is {tail}; it has to be above 0 and at most 0.5")
    low, high = 0.0, 1.0
    while upper_tail(high, freedom) > tail:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if upper_tail(middle, freedom) > tail:
            low = middle
        else:
            high = middle
    return high


def _beta_of_t(t: float, freedom: int) -> float:
    """I_x(freedom / 2, 1 / 2) at x = freedom / (freedom + t^2), the two-sided tail of |t|."""
    ratio = t * t / freedom
    if math.isinf(ratio):
        return 0.0
    return incomplete_beta(freedom / 2, 0.5, 1 / (1 + ratio), ratio / (1 + ratio))


def incomplete_beta(a: float, b: float, x: float, rest: float | None = None) -> float:
    """The regularised incomplete beta function I_x(a, b), by the continued fraction of DLMF 8.17.22.

    `rest` is 1 - x where the caller knows it more exactly.
    """
    rest = 1 - x if rest is None else rest
    if x <= 0:
        return 0.0
    if rest <= 0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    front = math.exp(log_front)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, rest) / b


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction, evaluated by Lentz's method."""
    c, d = 1.0, _away_from_0(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1 / _away_from_0(1 + term * d)
            c = _away_from_0(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _away_from_0(number: float) -> float:
    return number if abs(number) > _TINY else _TINY
