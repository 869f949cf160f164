"""NVIDIA's own binding on a library that serves devices from a file: values, and the reasons where there are none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.fake_devices import GOOD, HAS_NO_COMPILER, SLICE, A, B, ask, compiled, devices
from tuner.gpu_library import increase, plausible
from tuner.nvml import throttle_names
from tuner.visible_devices import Gpu, UnknownOrderError, visible_uuids

ROOT = Path(__file__).parents[2]
READ = """
import json, os, sys
from dataclasses import asdict
from tuner.nvml import Nvml
nvml = Nvml()
found = {"absent": nvml.absent, "gpus": [asdict(gpu) for gpu in nvml.gpus()], "simulated": nvml.is_simulated}
for name in sys.argv[1:]:
    found[name] = asdict(nvml.read(name)) | {"slow": asdict(nvml.read_slow(name))}
path = os.environ.get("X5TUNE_FAKE_NVML")
if os.environ.get("VANISH"):
    os.rename(path, path + ".away")
    found["away"] = asdict(nvml.read(sys.argv[1]))
    os.rename(path + ".away", path)
    found["back"] = asdict(nvml.read(sys.argv[1]))
nvml.close()
print(json.dumps(found))
"""
LOOK = """
import json
from tuner.machine_checks import look_at_nvml
found = look_at_nvml()
print(json.dumps([found.level, found.found, found.action]))
"""
pytestmark = pytest.mark.skipif(HAS_NO_COMPILER, reason="needs a C compiler")


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The stand-in, and one of a driver that lacks newer calls."""
    return {"full": compiled(tmp_path_factory.mktemp("full")), "old": compiled(tmp_path_factory.mktemp("old"), "-DOLD")}


def read(library: Path, tmp_path: Path, text: str, *uuids: str, script: str = READ, **variables: str) -> Any:
    file = tmp_path / "devices"
    file.write_text(text)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "X5TUNE_FAKE_NVML": str(file), **variables}
    return ask(script, uuids, environment)


def test_everything_that_a_gpu_says_in_our_units(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    found = read(libraries["full"], tmp_path, devices(GOOD), A)

    assert (found["absent"], found["simulated"]) == (None, True)
    assert found[A]["values"] == {
        "utilisation": 0.87,
        "memory_used_bytes": 70 << 30,
        "memory_total_bytes": 80 << 30,
        "power_w": 650.5,
        "temperature_c": 61,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 2619,
        "energy_j": 123456.789,
        "nvlink_sent_bytes": 1_024_000,
        "nvlink_received_bytes": 2_048_000,
    }
    assert found[A]["slow"]["values"] == {"pcie_sent_bytes_per_s": 1.5e6, "pcie_received_bytes_per_s": 2.5e6}
    assert (found[A]["throttled_by"], found[A]["reasons"]) == (["power_cap", "thermal"], {})
    assert found[A]["is_simulated"] is found[A]["slow"]["is_simulated"] is True


def test_one_failing_call_costs_no_other(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    poor = {**GOOD, "power": "!4", "temperature": "!999", "nvlink_sent": "!3", "throttle": "!3", "utilisation": "!15"}
    found = read(libraries["full"], tmp_path, devices(poor), A)[A]

    assert found["reasons"] == {
        "power_w": "no_permission",
        "temperature_c": "failed",
        "nvlink_sent_bytes": "not_supported",
        "throttled_by": "not_supported",
        "utilisation": "device_lost",
    }
    assert {name for name, value in found["values"].items() if value is None} == set(found["reasons"]) - {
        "throttled_by"
    }
    assert found["throttled_by"] is None
    assert found["values"]["energy_j"] == 123456.789


def test_a_driver_without_a_call_is_told_from_a_gpu_without_a_counter(
    libraries: Mapping[str, Path], tmp_path: Path
) -> None:
    without = {key: value for key, value in GOOD.items() if key != "energy"}
    assert read(libraries["full"], tmp_path, devices(without), A)[A]["reasons"] == {"energy_j": "not_supported"}
    old = read(libraries["old"], tmp_path, devices(GOOD), A)[A]
    assert old["reasons"] == {"energy_j": "old_driver"}
    assert (old["values"]["temperature_c"], old["values"]["memory_used_bytes"]) == (61, 70 << 30)  # by older calls


def test_what_cannot_be_true_is_refused(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    ones = str(0xFFFFFFFF)
    absurd = {**GOOD, "power": ones, "utilisation": "101", "temperature": "400", "memory_used": str(81 << 30)}
    absurd |= {"sm_clock": ones, "energy": str((1 << 64) - 1), "pcie_sent": ones}
    found = read(libraries["full"], tmp_path, devices(absurd), A)[A]

    wrong = {"power_w", "utilisation", "temperature_c", "memory_used_bytes", "sm_clock_mhz", "energy_j"}
    assert found["reasons"] == dict.fromkeys(wrong, "implausible")
    assert all(found["values"][name] is None for name in wrong)
    assert found["slow"]["reasons"] == {"pcie_sent_bytes_per_s": "implausible"}


def test_a_lost_an_unknown_and_a_divided_gpu(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    lost = {**GOOD, "uuid": B, "lost": "1"}
    part = {"uuid": SLICE, "name": "MIG", "parent": "0", "memory_total": str(10 << 30), "memory_used": "0"}
    found = read(libraries["full"], tmp_path, devices(GOOD, lost, part, count=2), B, SLICE, "GPU-nobody")

    assert found["gpus"] == [
        {"uuid": A, "name": "NVIDIA H100", "slices": [SLICE]},
        {"uuid": B, "name": "NVIDIA H100", "slices": []},
    ]
    assert set(found[B]["reasons"].values()) == {"device_lost"}
    assert set(found["GPU-nobody"]["reasons"].values()) == {"no_device"}
    assert found[SLICE]["values"]["memory_total_bytes"] == 10 << 30
    assert (found[SLICE]["values"]["power_w"], found[SLICE]["reasons"]["power_w"]) == (None, "not_supported")


def test_a_driver_that_goes_away_and_comes_back(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    found = read(libraries["full"], tmp_path, devices(GOOD), A, VANISH="1")
    assert set(found["away"]["reasons"].values()) == {"no_driver"}
    assert set(found["away"]["values"].values()) == {None}
    assert found["back"] == {key: value for key, value in found[A].items() if key != "slow"}


def test_without_a_driver_every_value_says_so(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    found = read(libraries["full"], tmp_path, devices(GOOD), A, X5TUNE_FAKE_NVML=str(tmp_path / "absent"))
    assert (found["absent"], found["gpus"]) == ("no_driver", [])
    assert set(found[A]["reasons"].values()) == {"no_driver"}


def test_nvml_that_may_not_be_used_says_so(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    found = read(libraries["full"], tmp_path, "-1.count=!4\n", A)
    assert (found["absent"], set(found[A]["reasons"].values())) == ("no_permission", {"no_permission"})


def test_doctor_names_the_gpus_what_they_lack_and_which_are_visible(
    libraries: Mapping[str, Path], tmp_path: Path
) -> None:
    other = {**GOOD, "uuid": B, "name": "NVIDIA T4", "energy": "!3"}
    same = {**other, "name": "NVIDIA H100"}

    def look(text: str, **variables: str) -> list[str]:
        return list(read(libraries["full"], tmp_path, text, **variables, script=LOOK))

    plain = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": ""}
    level, said, _ = look(devices(GOOD, same), **plain)
    assert level == "ok"
    assert said == f"simulated: NVIDIA H100; NVIDIA H100 (without energy_j not_supported); visible to jobs: {B}"
    level, _, action = look(devices(GOOD, other), **plain)
    assert (level, "CUDA_DEVICE_ORDER=PCI_BUS_ID" in action) == ("warning", True)


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="there is a driver")
def test_without_a_library_nothing_fails_and_nothing_is_simulated(tmp_path: Path) -> None:
    found = read(tmp_path, tmp_path, "", A)
    assert (found["absent"], found["simulated"], found[A]["is_simulated"]) == ("no_driver", False, False)


TWINS = (Gpu(A, "H100"), Gpu(B, "H100"))
BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [A, B]),
        ("1,0", [B, A]),
        (" 1 ", [B]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [A]),
        ("0,7,1", [A]),
        ("0,0", []),
        ("GPU-bbbb,0", [B, A]),
        ("GPU-", []),
        ("gpu-bbbb", []),
        ("GPU-bbbb2222,GPU-none,GPU-aaaa1111", [B]),
    ],
)
def test_visible_devices_are_read_as_cuda_reads_them(text: str | None, expected: Sequence[str]) -> None:
    environ = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_uuids(TWINS, environ) == expected


def test_a_divided_gpu_is_its_first_slice_unless_another_is_named() -> None:
    gpus = (Gpu(A, "H100", (SLICE, "MIG-dddd")), Gpu(B, "H100"))
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "0,1"}) == [SLICE, B]
    assert visible_uuids(gpus, {"CUDA_VISIBLE_DEVICES": "MIG-dddd"}) == ["MIG-dddd"]


def test_where_gpus_differ_their_order_has_to_be_fixed() -> None:
    mixed = (Gpu(A, "T4"), Gpu(B, "H100"))
    for environ in ({}, {"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}):
        with pytest.raises(UnknownOrderError, match="PCI_BUS_ID"):
            visible_uuids(mixed, environ)
    assert visible_uuids(mixed, BY_BUS | {"CUDA_VISIBLE_DEVICES": "1"}) == [B]
    assert visible_uuids(mixed, {"CUDA_VISIBLE_DEVICES": A}) == [A]
    assert visible_uuids(mixed[:1], {}) == [A]


def test_counters_bounds_and_bits() -> None:
    assert increase(10.0, 25.0, 100.0) == 15.0
    assert [increase(10.0, 5.0, 100.0), increase(0.0, 101.0, 100.0), increase(None, 1.0, 9.0)] == [None] * 3
    for absurd in (float("nan"), float("inf"), -0.1, 1.1):
        with pytest.raises(ValueError, match=r".*"):
            plausible(absurd, 0, 1)
    assert throttle_names(0) == ()
    assert throttle_names(0x8 | 0x10000) == ("hardware_slowdown", "unknown_0x10000")
