"""The sampler of a slot, on this machine's own processes and on GPUs that a library makes up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.fake_devices import GOOD, HAS_NO_COMPILER, SLICE, A, B, ask, compiled, devices
from tests.tuner.support import probe_config, probe_host, slot_setup
from tuner.assignment import Assignment, SlotReport
from tuner.meters import Rapl, Reading, process_tree
from tuner.slot import SlotRun
from tuner.telemetry_sampler import PATIENCE_S, TelemetrySampler

ROOT = Path(__file__).parents[2]
BUSY = "import time; held = bytearray(64 << 20); end = time.time() + 1.4\nwhile time.time() < end: pass"
WATCH = """
import json, os, sys, time
from tuner.telemetry_sampler import TelemetrySampler
sampler = TelemetrySampler(float(os.environ.get("GPUS", "1")), 1.0)
sampler.begin(os.getpid())
path = os.environ["X5TUNE_FAKE_NVML"]
time.sleep(0.6)
if os.environ.get("VANISH"):
    os.rename(path, path + ".away")
time.sleep(1.2)
found = sampler.look(0.5)
sampler.close()
print(json.dumps({"summary": found.summary, "trace": found.trace, "energy_j": found.energy_j}))
"""
needs_cc = pytest.mark.skipif(HAS_NO_COMPILER, reason="needs a C compiler")


@pytest.fixture
def sampler() -> Iterator[TelemetrySampler]:
    a_sampler = TelemetrySampler(0.0, 1.0)
    yield a_sampler
    a_sampler.close()


def test_a_process_that_computes_is_seen_with_its_memory_and_its_cpu_time(sampler: TelemetrySampler) -> None:
    sampler.begin(os.getpid())
    with subprocess.Popen([sys.executable, "-c", BUSY]):
        time.sleep(1.2)
        seen = sampler.look()
    assert seen is not None
    assert seen.summary["quantities"]["probe.memory_bytes"]["max"] > 64 << 20
    assert seen.summary["counted"]["probe.cpu_s"] > 0.2
    assert 0 <= seen.summary["quantities"]["host.cpu_share"]["mean"] <= 1
    assert seen.summary["source"] == "host"


def test_without_counters_energy_is_unavailable_and_says_so(tmp_path: Path) -> None:
    reading = Reading()
    Rapl(tmp_path / "powercap").read(reading)
    assert (reading.counters, reading.reasons) == ({}, {"host.energy_j": "unavailable"})


def test_processor_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name, microjoules in {
        "intel-rapl:0": 5_000_000,
        "intel-rapl:1": 2_500_000,
        "intel-rapl:0:0": 4_000_000,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
    reading = Reading()
    Rapl(tmp_path).read(reading)
    assert reading.counters == {"host.energy_j": 7.5}


def test_a_driver_that_hangs_holds_nobody_up(sampler: TelemetrySampler) -> None:
    hang = threading.Event()
    sampler._orders.put(hang.wait)  # what a call into a stuck driver looks like
    sampler.begin(os.getpid())
    began = time.monotonic()
    assert sampler.look() is None
    first_s = time.monotonic() - began
    assert sampler.look() is None
    assert time.monotonic() - began < first_s + PATIENCE_S / 2  # once is enough
    hang.set()
    deadline = time.monotonic() + 10
    while sampler.look() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_process_tree_leaves_its_root_out() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 5 & wait"], start_new_session=True) as shell:
        deadline = time.monotonic() + 10
        while len(found := process_tree(shell.pid)) != 1:
            assert time.monotonic() < deadline, found
        assert shell.pid not in found
        assert shell.pid in process_tree(os.getpid())
        os.killpg(shell.pid, 9)


def test_a_slot_hands_out_what_it_has_measured(sampler: TelemetrySampler) -> None:
    with probe_host() as host:
        run = SlotRun(host, slot_setup(), Assignment("t0", probe_config(), judged=False), sampler)
        report = run.step()
        while report.end is None:
            report = run.step()
    probe = report.probe
    assert probe.telemetry["counted"]["probe.cpu_s"] > 0  # of a probe that was gone before the second look
    assert probe.trace["seconds"][0] == 0.0
    assert (probe.energy_j is None) == (probe.telemetry["energy_reason"] is not None)


def test_only_reports_that_are_judged_carry_the_trace(sampler: TelemetrySampler) -> None:
    with probe_host() as host:
        run = SlotRun(host, slot_setup(), Assignment("t0", probe_config(sleep_seconds=0.3)), sampler)
        reports: list[SlotReport] = []
        while not reports or reports[-1].end is None:
            reports.append(run.step())
    assert all(bool(report.probe.trace) == bool(report.points or report.end) for report in reports)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("full", "old")}
    return {"full": compiled(folders["full"]), "old": compiled(folders["old"], "-DOLD")}


def watch(library: Path, tmp_path: Path, text: str, **variables: str) -> Any:
    file = tmp_path / "devices"
    file.write_text(text)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library), "X5TUNE_FAKE_NVML": str(file), **variables}
    return ask(WATCH, (), environment)


@needs_cc
def test_energy_is_the_difference_of_the_counter(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    seen = watch(libraries["full"], tmp_path, devices({**GOOD, "energy": "@300"}))  # 300 W
    summary = seen["summary"]
    assert seen["energy_j"] == pytest.approx(300 * summary["seconds"], rel=0.05)
    assert (summary["energy_source"], summary["is_simulated"]) == ("counter", True)
    assert summary["devices"] == [{"uuid": A, "name": "NVIDIA H100"}]
    assert summary["quantities"]["gpu0.temperature_c"] == {"mean": 61.0, "min": 61.0, "max": 61.0}
    assert summary["throttled"] == {"gpu0.power_cap": 1.0, "gpu0.thermal": 1.0}


@needs_cc
def test_half_a_gpu_takes_half_of_its_energy(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    seen = watch(libraries["full"], tmp_path, devices({**GOOD, "energy": "@300"}), GPUS="0.5")
    assert seen["energy_j"] == pytest.approx(150 * seen["summary"]["seconds"], rel=0.05)


@needs_cc
def test_without_an_energy_counter_power_is_added_up(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    seen = watch(libraries["old"], tmp_path, devices({**GOOD, "power": "250000"}))
    assert seen["energy_j"] == pytest.approx(250 * seen["summary"]["seconds"], rel=0.05)
    assert seen["summary"]["energy_source"] == "power"
    assert seen["summary"]["reasons"]["gpu0.energy_j"] == "old_driver"


@needs_cc
def test_the_visible_gpus_are_watched_in_the_order_of_the_job(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    other = {**GOOD, "uuid": B, "temperature": "40"}
    variables = {"CUDA_VISIBLE_DEVICES": f"{B},{A}"}
    seen = watch(libraries["full"], tmp_path, devices(GOOD, other), GPUS="2", **variables)["summary"]
    assert [device["uuid"] for device in seen["devices"]] == [B, A]
    assert [seen["quantities"][f"gpu{index}.temperature_c"]["mean"] for index in (0, 1)] == [40.0, 61.0]


@needs_cc
def test_a_mig_slice_tells_what_it_can(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    part = {"uuid": SLICE, "name": "MIG", "parent": "0", "memory_total": str(10 << 30), "memory_used": str(1 << 30)}
    variables = {"CUDA_VISIBLE_DEVICES": SLICE}
    seen = watch(libraries["full"], tmp_path, devices(GOOD, part, count=1), **variables)["summary"]
    assert seen["quantities"]["gpu0.memory_used_bytes"]["max"] == 1 << 30
    assert seen["reasons"]["gpu0.power_w"] == "not_supported"
    assert (seen["energy_j"], seen["energy_reason"]) == (None, "not_supported")


@needs_cc
def test_a_library_that_vanishes_costs_the_energy_and_nothing_else(
    libraries: Mapping[str, Path], tmp_path: Path
) -> None:
    text = devices({**{key: value for key, value in GOOD.items() if key != "power"}, "energy": "@300"})
    seen = watch(libraries["full"], tmp_path, text, VANISH="1")["summary"]
    assert (seen["energy_j"], seen["energy_reason"]) == (None, "no_driver")
    assert seen["quantities"]["gpu0.temperature_c"]["mean"] == 61.0
    assert "probe.memory_bytes" in seen["quantities"] or seen["samples"] > 0


@needs_cc
def test_other_processes_on_the_device_are_counted(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    seen = watch(libraries["full"], tmp_path, devices({**GOOD, "processes": "999999:1048576,999998:7"}))["summary"]
    assert seen["quantities"]["gpu0.strangers"]["mean"] == 2.0
    assert seen["reasons"]["gpu0.probe_memory_bytes"] == "not_visible"


@needs_cc
def test_without_a_driver_the_host_is_still_watched(libraries: Mapping[str, Path], tmp_path: Path) -> None:
    variables = {"X5TUNE_FAKE_NVML": str(tmp_path / "absent"), "VANISH": ""}
    seen = watch(libraries["full"], tmp_path, "", **variables)["summary"]
    assert (seen["energy_j"], seen["energy_reason"], seen["reasons"]["gpu"]) == (None, "no_driver", "no_driver")
    assert seen["quantities"]["host.memory_available_bytes"]["min"] > 0
