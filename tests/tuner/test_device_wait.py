"""Waiting for a GPU that is hot or used by others, and marking what was measured on it all the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tuner.support import Clock
from tuner.device_wait import ALL_S, EACH_S, DeviceWait, mark, most_s, trouble
from tuner.meters import Reading
from tuner.spec import resolve

HOT = Reading(throttled=["gpu0.power_cap", "gpu0.thermal"])
COOL = Reading(gauges={"gpu0.strangers": 1.0, "gpu0.utilisation": 0.0}, throttled=["gpu0.power_cap"])
USED = Reading(gauges={"gpu0.strangers": 2.0, "gpu0.utilisation": 0.9})


def wait_on(readings: list[Reading | None], clock: Clock, left_s: float = ALL_S) -> DeviceWait:
    """A wait that reads one after the other, the last one for ever."""
    return DeviceWait(
        lambda: readings.pop(0) if len(readings) > 1 else readings[0], left_s, is_shared=False, clock=clock
    )


def test_a_hot_device_is_waited_for_and_a_cool_one_is_not() -> None:
    clock = Clock()
    wait = wait_on([HOT, HOT, COOL], clock)
    assert wait.ask() == (False, "waits for the device: gpu0 is throttled (thermal)")
    clock.now += 7
    assert wait.ask()[0] is False
    clock.now += 1
    assert wait.ask() == (True, "waited 8 s for the device")
    assert wait.ask() == (True, None)


def test_a_device_that_stays_hot_is_waited_for_so_long_and_no_longer_before_each_probe_and_in_all() -> None:
    clock = Clock()
    wait = wait_on([HOT], clock, left_s=EACH_S + 10)
    waited = []
    for _ in range(3):
        began = clock.now
        while not (told := wait.ask())[0]:
            clock.now += 1
        waited.append(clock.now - began)
        assert told[1] is not None and "starts although gpu0 is throttled (thermal)" in told[1]
    assert waited == [EACH_S, 10, 0]


def test_nothing_is_waited_for_where_nothing_is_known() -> None:
    assert wait_on([None], Clock()).ask() == (True, None)


def test_others_that_compute_are_waited_for_unless_the_device_is_shared_on_purpose() -> None:
    assert trouble(USED, is_shared=False) == "gpu0 is used by 2 other processes, 90% of the time"
    assert trouble(USED, is_shared=True) is None
    assert trouble(COOL, is_shared=False) is None  # it only holds memory


@pytest.mark.parametrize(
    ("telemetry", "said"),
    [
        ({"throttled": {"gpu0.hardware_thermal": 0.4}}, "gpu0 was throttled (hardware_thermal) in 40% of the time"),
        ({"throttled": {"gpu0.thermal": 0.01, "gpu0.power_cap": 1.0}}, None),
        ({"quantities": {"gpu0.strangers": {"mean": 0.5, "max": 1.0}, "gpu0.probe_memory_bytes": {}}}, "by 1 other"),
        ({"quantities": {"gpu0.strangers": {"mean": 0.5, "max": 1.0}}}, None),
    ],
    ids=["hot", "a moment, and a power cap", "used", "its own may be counted"],
)
def test_a_probe_carries_a_mark_of_what_it_was_measured_under(telemetry: dict[str, Any], said: str | None) -> None:
    found = mark({"throttled": {}, "quantities": {}, **telemetry}, is_shared=False)
    assert found == said or (found is not None and said is not None and said in found)


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [({}, ALL_S), ({"seconds": 200}, 10.0), ({"device_hours": 1, "seconds": 1e6}, 180.0), ({"trials": 3}, ALL_S)],
)
def test_waiting_takes_a_small_share_of_the_budget(budget: dict[str, float], seconds: float) -> None:
    assert most_s(resolve({"workload": "quadratic", "budget": budget}).job) == pytest.approx(seconds)
