"""When a schedule is due, on the clock of a place, through both changes of that clock."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice, pairwise

import pytest

from service.cron import Cron, CronError


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    moment = datetime.fromisoformat(after).replace(tzinfo=UTC)
    return [f"{each:%m-%d %H:%M}" for each in islice(Cron(expression, zone).after(moment), count)]


def test_two_at_night_in_berlin_is_one_in_the_winter_and_midnight_in_the_summer() -> None:
    assert times("0 2 * * *", "Europe/Berlin", "2026-01-10T12:00", 2) == ["01-11 01:00", "01-12 01:00"]
    assert times("0 2 * * *", "Europe/Berlin", "2026-07-10T12:00", 1) == ["07-11 00:00"]


def test_a_time_that_the_spring_leaves_out_comes_right_after_it() -> None:
    # 2026-03-29: 02:00 becomes 03:00, which is 01:00 UTC
    assert times("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", 2) == ["03-29 01:00", "03-30 00:30"]


def test_a_time_that_the_autumn_has_twice_comes_once() -> None:
    # 2026-10-25: 02:30 is 00:30 UTC and, an hour later, 01:30 UTC
    assert times("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", 2) == ["10-25 00:30", "10-26 01:30"]


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_what_comes_every_quarter_of_an_hour_goes_by_real_time(day: str) -> None:
    found = list(islice(Cron("*/15 * * * *", "Europe/Berlin").after(datetime.fromisoformat(f"{day}T00:00+00:00")), 16))
    assert {later - earlier for earlier, later in pairwise(found)} == {found[1] - found[0]}


def test_nicknames_and_words() -> None:
    assert Cron("@daily", "UTC").next(datetime(2026, 1, 1, 5, tzinfo=UTC)) == datetime(2026, 1, 2, tzinfo=UTC)
    assert "02:00" in Cron("0 2 * * *", "UTC").words()


@pytest.mark.parametrize(
    ("expression", "zone", "field"),
    [
        ("", "UTC", "cron"),
        ("x", "UTC", "cron"),
        ("60 * * * *", "UTC", "cron"),
        ("* * * * * *", "UTC", "cron"),
        ("0 0 30 2 *", "UTC", "cron"),
        ("@never", "UTC", "cron"),
        ("0 2 * * *", "Mars/Base", "timezone"),
        ("0 2 * * *", "../../etc/passwd", "timezone"),
        ("0 2 * * *", "/etc/localtime", "timezone"),
        ("0 2 * * *", "", "timezone"),
    ],
)
def test_what_is_no_rule_is_refused_with_its_field(expression: str, zone: str, field: str) -> None:
    with pytest.raises(CronError) as caught:
        Cron(expression, zone)
    assert caught.value.field == field
