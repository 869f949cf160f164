"""AMD's own binding on a library that serves devices from a file: values, and the reasons where there are none."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.fake_devices import AMD_A, AMD_B, APART, GOOD_AMD, HAS_NO_COMPILER, ask, compiled_amd, devices
from tuner.visible_devices import Gpu, visible_to_hip

ROOT = Path(__file__).parents[2]
READ = """
import json, os, sys
from dataclasses import asdict
from tuner.gpus import open_gpus
from tuner.device import find_device
library = open_gpus()
found = {"name": library.name, "absent": library.absent, "gpus": [asdict(gpu) for gpu in library.gpus()]}
found |= {"visible": library.visible(os.environ), "simulated": library.is_simulated, "device": asdict(find_device(1))}
for uuid in sys.argv[1:]:
    held = library.processes(uuid)
    found[uuid] = asdict(library.read(uuid)) | {"slow": asdict(library.read_slow(uuid)), "processes": held}
path = os.environ["X5TUNE_FAKE_AMD"]
if os.environ.get("VANISH"):
    os.rename(path, path + ".away")
    found["away"] = asdict(library.read(sys.argv[1]))
    os.rename(path + ".away", path)
    found["back"] = asdict(library.read(sys.argv[1]))
library.close()
print(json.dumps(found))
"""
pytestmark = pytest.mark.skipif(HAS_NO_COMPILER, reason="needs a C compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_amd(tmp_path_factory.mktemp("amd"))


def read(library: Path, tmp_path: Path, text: str, *uuids: str, script: str = READ, **variables: str) -> Any:
    file = tmp_path / "devices"
    file.write_text(text)
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    ours = {"LD_LIBRARY_PATH": str(library), "X5TUNE_FAKE_AMD": str(file), "PYTHONPATH": str(APART)}
    environment = {**kept, **ours, **variables}
    return ask(script, uuids, environment)


def test_everything_that_a_gpu_says_in_our_units(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, devices(GOOD_AMD | {"processes": "77:1000,78:2000"}), AMD_A)

    assert (found["name"], found["absent"], found["simulated"]) == ("amdsmi", None, True)
    assert found[AMD_A]["values"] == {
        "utilisation": 0.87,
        "memory_used_bytes": 70 << 30,
        "memory_total_bytes": 192 << 30,
        "power_w": 650,
        "temperature_c": 71,
        "sm_clock_mhz": 2100,
        "memory_clock_mhz": 1300,
        "energy_j": pytest.approx(15259, rel=1e-6),
        "xgmi_sent_bytes": 2_048_000,
        "xgmi_received_bytes": 2_048_000,
    }
    assert found[AMD_A]["slow"]["values"] == {"pcie_bytes_per_s": 1e9}
    assert (found[AMD_A]["slow"]["throttled_by"], found[AMD_A]["slow"]["reasons"]) == (["power_cap", "thermal"], {})
    assert found[AMD_A]["processes"] == {"77": 1000, "78": 2000}
    assert found["device"] == {
        "type": "cuda",
        "name": "AMD Instinct MI300X (simulated)",
        "has_bf16": True,
        "memory_bytes": 192 << 30,
    }


def test_one_failing_call_costs_no_other(library: Path, tmp_path: Path) -> None:
    poor = {
        **GOOD_AMD,
        "power": "!10",
        "energy": "!2",
        "utilisation": str(0xFFFF),
        "hotspot": "!2",
        "memory_clock": "!12",
    }
    del poor["violated"]
    found = read(library, tmp_path, devices(poor), AMD_A)[AMD_A]

    assert found["reasons"] == {
        "power_w": "no_permission",
        "energy_j": "not_supported",
        "utilisation": "not_supported",
        "memory_clock_mhz": "device_lost",
    }
    assert found["slow"]["reasons"] == {"throttled_by": "not_supported"}
    assert (found["values"]["temperature_c"], found["slow"]["throttled_by"]) == (61, None)  # the edge's


ANOTHER_VERSION = """
import amdsmi
del amdsmi.amdsmi_get_gpu_enumeration_info, amdsmi.amdsmi_get_link_metrics
amdsmi.amdsmi_get_power_info = lambda handle: {"average": 1}
amdsmi.amdsmi_get_energy_count = lambda handle: {"energy_accumulator": "N/A", "counter_resolution": 15.3}
amdsmi.amdsmi_get_gpu_process_list = lambda handle: [{"pid": 7, "memory_usage": {"vram_mem": "N/A"}}]
"""


def test_a_module_that_lacks_calls_and_fields_costs_only_their_values(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, devices(GOOD_AMD), AMD_A, script=ANOTHER_VERSION + READ)

    lacking = ("power_w", "energy_j", "xgmi_sent_bytes", "xgmi_received_bytes")
    assert found[AMD_A]["reasons"] == dict.fromkeys(lacking, "old_driver")
    assert found[AMD_A]["processes"] == "old_driver"
    assert found[AMD_A]["values"]["utilisation"] == 0.87
    assert len(found["gpus"]) == 1


def test_what_cannot_be_true_is_refused(library: Path, tmp_path: Path) -> None:
    absurd = {**GOOD_AMD, "utilisation": "101", "hotspot": "400", "memory_used": str(193 << 30), "power_now": "9999"}
    found = read(library, tmp_path, devices(absurd), AMD_A)[AMD_A]
    wrong = ("utilisation", "temperature_c", "memory_used_bytes", "power_w")
    assert found["reasons"] == dict.fromkeys(wrong, "implausible")


def test_gpus_are_in_hips_order_and_older_drivers_name_them_by_serial_number(library: Path, tmp_path: Path) -> None:
    first = {**GOOD_AMD, "hip_id": "1"}
    second = {**GOOD_AMD, "uuid": "!2", "serial": AMD_B.removeprefix("GPU-"), "hip_id": "0", "version": str(0x906)}
    found = read(library, tmp_path, devices(first, second), AMD_A, AMD_B, HIP_VISIBLE_DEVICES="0")
    assert {each["uuid"] for each in found["gpus"]} == {AMD_A, AMD_B}
    assert found[AMD_B]["values"]["power_w"] == 650
    known = read(library, tmp_path, devices(first, {**second, "uuid": AMD_B}), HIP_VISIBLE_DEVICES="0")
    assert [each["uuid"] for each in known["gpus"]] == [AMD_B, AMD_A]
    assert (known["visible"], known["device"]["has_bf16"]) == ([AMD_B], False)


def test_a_driver_that_goes_away_and_comes_back(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, devices(GOOD_AMD), AMD_A, VANISH="1")
    assert set(found["away"]["reasons"].values()) == {"no_driver"}
    assert set(found["away"]["values"].values()) == {None}
    assert found["back"] == {key: value for key, value in found[AMD_A].items() if key not in ("slow", "processes")}


def test_an_unknown_device_says_so(library: Path, tmp_path: Path) -> None:
    found = read(library, tmp_path, devices(GOOD_AMD), "GPU-nobody")["GPU-nobody"]
    assert (set(found["reasons"].values()), found["processes"]) == ({"no_device"}, "no_device")


def test_without_a_driver_or_with_one_that_is_too_old_there_is_no_gpu(library: Path, tmp_path: Path) -> None:
    assert read(library, tmp_path, devices(GOOD_AMD), X5TUNE_FAKE_AMD=str(tmp_path / "absent"))["gpus"] == []
    (tmp_path / "old").mkdir()
    old = compiled_amd(tmp_path / "old", without="amdsmi_get_gpu_fan_speed")
    told = read(old, tmp_path, devices(GOOD_AMD))
    assert (told["name"], told["absent"], told["gpus"]) == ("nvml", "no_driver", [])


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ["a", "b", "c"]),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ["c", "a"]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ["b"]),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "1"}, ["b"]),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "1"}, ["a"]),
        ({"HIP_VISIBLE_DEVICES": ""}, ["a", "b", "c"]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": "1,7,0"}, ["b"]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["c"]),
        ({"ROCR_VISIBLE_DEVICES": "c,0"}, ["c", "a"]),
    ],
)
def test_visible_devices_are_read_as_rocm_reads_them(variables: Mapping[str, str], expected: list[str]) -> None:
    assert visible_to_hip([Gpu(uuid, "MI300X") for uuid in "abc"], variables) == expected


WATCH = """
import json, os, sys, time
from tuner.telemetry_sampler import TelemetrySampler
sampler = TelemetrySampler(1.0, 1.0)
sampler.begin(os.getpid())
time.sleep(1.2)
found = sampler.look(0.5)
sampler.close()
print(json.dumps({"summary": found.summary, "energy_j": found.energy_j}))
"""


def test_a_probe_on_such_a_gpu_is_watched(library: Path, tmp_path: Path) -> None:
    second = {**GOOD_AMD, "uuid": AMD_B, "hip_id": "1", "energy": "@19660"}  # of 15.259 uJ each: 300 W
    found = read(library, tmp_path, devices(GOOD_AMD, second), script=WATCH, HIP_VISIBLE_DEVICES="1")
    summary = found["summary"]
    assert found["energy_j"] == pytest.approx(300 * summary["seconds"], rel=0.05)
    assert (summary["source"], summary["energy_source"], summary["is_simulated"]) == ("amdsmi", "counter", True)
    assert summary["devices"] == [{"uuid": AMD_B, "name": "AMD Instinct MI300X"}]
    assert summary["quantities"]["gpu0.temperature_c"]["mean"] == 71


LOOK = """
import json
from tuner.machine_checks import look_at_amd_smi
found = look_at_amd_smi()
print(json.dumps([found.level, found.found, found.action]))
"""


def test_doctor_names_the_gpus_and_what_they_lack(library: Path, tmp_path: Path) -> None:
    poor = {**GOOD_AMD, "energy": "!2"}
    level, said, _ = read(library, tmp_path, devices(poor), script=LOOK)
    assert (level, said) == ("ok", "simulated: AMD Instinct MI300X (without energy_j not_supported)")


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="there is a driver")
def test_doctor_warns_of_the_module_without_its_library(tmp_path: Path) -> None:
    level, said, action = read(tmp_path, tmp_path, "", script=LOOK)
    assert (level, said) == ("warning", "cannot be used: no_driver")
    assert "pip uninstall amdsmi" in action
