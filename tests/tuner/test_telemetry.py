"""What is kept of the samples: summaries that can be added up, and traces of bounded length."""

from __future__ import annotations

import pytest

from tuner.telemetry import MAX_POINTS, Recording, Sample, Trace, merged


def summary(seconds: float, *powers: float, energy_j: float | None = 1.0, **changes: object) -> dict[str, object]:
    recording = Recording()
    for at, power in enumerate(powers):
        recording.add(at, Sample({"gpu0.power_w": power}))
    told = {"source": "nvml", "is_simulated": False, "devices": [], "seconds": seconds, "counted": {"probe.cpu_s": 2.0}}
    energy = {"energy_j": energy_j, "energy_source": "counter", "energy_reason": None if energy_j else "no_permission"}
    return {**told, **recording.summary(), **energy, **changes}


def test_each_quantity_has_mean_least_and_most() -> None:
    recording = Recording()
    for at, watts in enumerate((100.0, 300.0, 200.0)):
        recording.add(at, Sample({"gpu0.power_w": watts, "gpu0.energy_j": None}, {"gpu0.energy_j": "not_supported"}))
    assert recording.summary() == {
        "samples": 3,
        "quantities": {"gpu0.power_w": {"mean": 200.0, "min": 100.0, "max": 300.0}},
        "reasons": {"gpu0.energy_j": "not_supported"},
        "throttled": {},
    }


def test_a_value_that_came_back_has_no_reason_any_more() -> None:
    recording = Recording()
    recording.add(0, Sample({}, {"gpu0.power_w": "no_driver"}))
    recording.add(1, Sample({"gpu0.power_w": 50.0}))
    assert recording.summary()["reasons"] == {}


def test_throttling_is_a_share_of_the_samples() -> None:
    recording = Recording()
    for at in range(4):
        recording.add(at, Sample({}, throttled=["gpu0.thermal"] if at == 3 else []))
    assert recording.summary()["throttled"] == {"gpu0.thermal": 0.25}


@pytest.mark.parametrize("count", [1, 599, 600, 601, 1200, 1201, 5000])
def test_a_trace_keeps_its_length_and_its_mean(count: int) -> None:
    trace = Trace()
    for at in range(count):
        trace.add(at, {"host.cpu_share": float(at)})
    told = trace.told()
    assert len(told["seconds"]) <= MAX_POINTS
    assert len(told["values"]["host.cpu_share"]) == len(told["seconds"])
    assert told["seconds"] == sorted(told["seconds"])
    assert told["values"]["host.cpu_share"] == pytest.approx(told["seconds"])
    assert told["seconds"][-1] > 0.99 * (count - 1) - 1


def test_a_quantity_that_is_read_now_and_then_leaves_gaps() -> None:
    trace = Trace()
    trace.add(0, {"a": 1.0})
    trace.add(1, {"a": 2.0, "b": 5.0})
    assert trace.told() == {"seconds": [0.0, 1.0], "values": {"a": [1.0, 2.0], "b": [None, 5.0]}}


def test_probes_of_a_trial_are_added_up_by_their_samples() -> None:
    told = merged([summary(3.0, 100.0, 100.0, 100.0, energy_j=300.0), {}, summary(1.0, 200.0, energy_j=200.0)])
    assert told["quantities"] == {"gpu0.power_w": {"mean": 125.0, "min": 100.0, "max": 200.0}}
    assert (told["seconds"], told["samples"], told["energy_j"], told["energy_reason"]) == (4.0, 4, 500.0, None)
    assert told["counted"] == {"probe.cpu_s": 4.0}


def test_energy_of_a_trial_is_unknown_when_that_of_one_probe_is() -> None:
    told = merged([summary(1.0, 1.0), summary(1.0, 1.0, energy_j=None)])
    assert (told["energy_j"], told["energy_reason"]) == (None, "no_permission")


def test_one_simulated_device_stamps_the_whole_trial() -> None:
    assert merged([summary(1.0, 1.0), summary(1.0, 1.0, is_simulated=True)])["is_simulated"] is True
    assert merged([]) == {}
