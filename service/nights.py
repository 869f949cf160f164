"""What a schedule does at its due times, and how a run compares with the one before; pure. The time is passed in."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations
from typing import Literal

from service.cron import Cron

GRACE = timedelta(seconds=60)
MAX_MISSED = 10_000
MAX_EXACT = 20_000
LEVEL = 0.015
"""What is called a regression happens to a recipe that is as good as ever once in 67 nights at most."""

Result = Literal["first", "new_best", "same", "regression", "unknown", "failed", "cancelled"]
NEWS = ("new_best", "regression", "failed")


@dataclass(frozen=True, slots=True)
class Due:
    """A due time that has come. `missed` are those before it that nobody was there for; `is_late`: so is this one."""

    at: datetime
    missed: int
    is_late: bool
    next: datetime | None


def due(cron: Cron, planned: datetime, now: datetime, ends_at: datetime | None = None) -> Due:
    """The last due time from `planned` up to `now`, and the one to wait for."""
    at, missed = planned, 0
    following = None
    for time in cron.after(planned):
        if time > now or missed >= MAX_MISSED:
            following = time if time > now else cron.next(now)
            break
        at, missed = time, missed + 1
    if ends_at is not None and following is not None and following > ends_at:
        following = None
    return Due(at, missed, now - at > GRACE, following)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a run compares with what stood before it. Means are over the fresh seeds, None without any."""

    result: Result
    before: float | None = None
    now: float | None = None
    p_value: float | None = None


def compare(
    state: str,
    verdict: str | None,
    before: Sequence[float],
    now: Sequence[float],
    *,
    has_standing: bool,
    is_minimized: bool,
) -> Comparison:
    """`before` and `now` are the standing recipe's values on fresh seeds, when it was last measured and in this run.

    It has regressed when it is worse by a one-sided permutation test (Fisher 1935) of the two means at `LEVEL`, which
    takes four seeds at least. A regression goes before a new best: what is better than something broken is no
    news. Where nothing stood, a recommendation is the first.
    """
    if state != "succeeded":
        return Comparison("failed" if state == "failed" else "cancelled")
    if not has_standing:
        return Comparison("first" if verdict == "recommended" else "unknown")
    p_value = worse_by_chance(before, now, is_minimized=is_minimized)
    means = _mean(before), _mean(now)
    if p_value is not None and p_value <= LEVEL:
        return Comparison("regression", *means, p_value)
    if verdict == "recommended":
        return Comparison("new_best", *means, p_value)
    return Comparison("same" if p_value is not None else "unknown", *means, p_value)


def worse_by_chance(before: Sequence[float], now: Sequence[float], *, is_minimized: bool) -> float | None:
    """How likely values as bad as `now` are, were they drawn with `before` from one pot; None with too few to tell.

    Exact up to MAX_EXACT ways to draw them (eight seeds each); of more, that many are tried at random, the same for
    equal values, and counted so that the level is kept (Phipson and Smyth 2010, equation 2).
    """
    ways = math.comb(len(before) + len(now), len(now))
    if min(len(before), len(now)) < 2 or 1 / ways > LEVEL:
        return None
    sign = 1 if is_minimized else -1
    pot = [sign * value for value in (*before, *now)]
    seen = math.fsum(sign * value for value in now)
    tolerance = 1e-12 * max(1.0, abs(seen))
    if ways <= MAX_EXACT:
        return sum(math.fsum(drawn) >= seen - tolerance for drawn in combinations(pot, len(now))) / ways
    dice = random.Random(0)
    as_bad = sum(math.fsum(dice.sample(pot, len(now))) >= seen - tolerance for _ in range(MAX_EXACT))
    return (as_bad + 1) / (MAX_EXACT + 1)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
