"""Which due time is used, and how a run compares with what stood before it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.cron import Cron
from service.nights import Due, compare, due, worse_by_chance

DAILY = Cron("0 2 * * *", "UTC")
TWO = datetime(2026, 1, 5, 2, tzinfo=UTC)
DAY = timedelta(days=1)
GOOD = [0.50, 0.52, 0.51, 0.53, 0.49]
BAD = [0.70, 0.71, 0.69, 0.72, 0.68]


def test_a_due_time_is_used_at_its_time() -> None:
    assert due(DAILY, TWO, TWO + timedelta(seconds=1)) == Due(TWO, 0, is_late=False, next=TWO + DAY)


def test_of_several_that_were_missed_the_last_one_is_used() -> None:
    assert due(DAILY, TWO, TWO + 3 * DAY + timedelta(hours=1)) == Due(TWO + 3 * DAY, 3, True, TWO + 4 * DAY)


def test_one_that_has_just_come_is_not_late_whatever_was_missed_before() -> None:
    assert due(DAILY, TWO, TWO + DAY + timedelta(seconds=2)) == Due(TWO + DAY, 1, False, TWO + 2 * DAY)


def test_a_minutely_rule_that_was_away_for_a_year_is_caught_up_with_at_once() -> None:
    found = due(Cron("* * * * *", "UTC"), TWO, TWO + 365 * DAY)
    assert found.is_late
    assert found.next == TWO + 365 * DAY + timedelta(minutes=1)


def test_nothing_is_due_after_the_end() -> None:
    assert due(DAILY, TWO, TWO, TWO + timedelta(hours=5)).next is None
    assert due(DAILY, TWO, TWO, TWO + DAY).next == TWO + DAY


@pytest.mark.parametrize(
    ("before", "now", "verdict", "expected"),
    [
        (GOOD, GOOD, "no_recommendation", "same"),
        (GOOD, GOOD, "recommended", "new_best"),
        (GOOD, BAD, "no_recommendation", "regression"),
        (GOOD, BAD, "recommended", "regression"),
        (BAD, GOOD, "no_recommendation", "same"),
        (GOOD[:3], BAD[:3], "no_recommendation", "unknown"),
        (GOOD, [], "no_recommendation", "unknown"),
        (GOOD, [], "recommended", "new_best"),
    ],
)
def test_the_standing_recipe_measured_again(before: list[float], now: list[float], verdict: str, expected: str) -> None:
    assert compare("succeeded", verdict, before, now, has_standing=True, is_minimized=True).result == expected


def test_higher_is_worse_only_where_lower_is_better() -> None:
    assert compare("succeeded", None, GOOD, BAD, has_standing=True, is_minimized=False).result == "same"
    assert compare("succeeded", None, BAD, GOOD, has_standing=True, is_minimized=False).result == "regression"


def test_a_run_that_did_not_succeed_is_not_compared() -> None:
    assert compare("failed", None, GOOD, BAD, has_standing=True, is_minimized=True).result == "failed"
    assert compare("cancelled", None, GOOD, BAD, has_standing=True, is_minimized=True).result == "cancelled"


def test_where_nothing_stood_a_recommendation_is_the_first() -> None:
    assert compare("succeeded", "recommended", [], [], has_standing=False, is_minimized=True).result == "first"
    assert compare("succeeded", "no_recommendation", [], [], has_standing=False, is_minimized=True).result == "unknown"


def test_the_permutation_test_is_exact() -> None:
    assert worse_by_chance([1, 2, 3, 4], [5, 6, 7, 8], is_minimized=True) == 1 / 70
    assert worse_by_chance([1, 2, 3, 5], [4, 6, 7, 8], is_minimized=True) == 2 / 70
    assert worse_by_chance([1.0] * 5, [1.0] * 5, is_minimized=True) == 1.0


@pytest.mark.parametrize(("shift", "low", "high"), [(0.0, 0.3, 0.7), (0.5, 0.0, 0.001)])
def test_very_many_seeds_are_compared_in_no_time(shift: float, low: float, high: float) -> None:
    before = [0.5 + seed / 100 for seed in range(64)]
    p_value = worse_by_chance(before, [value + shift for value in before], is_minimized=True)
    assert p_value is not None
    assert low <= p_value <= high
