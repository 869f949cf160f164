"""What a slot's sampler reads: GPUs, the probe's processes, the host; gauges as they are, counters as totals.

Everything is observed from outside the probe. A value that cannot be had has a reason and costs no other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tuner.gpu_library import Reason
from tuner.gpus import open_gpus
from tuner.memory_sampler import children_of
from tuner.visible_devices import Gpu, UnknownOrderError

RAPL = Path("/sys/class/powercap")
GPU_COUNTERS = ("energy_j", "nvlink_sent_bytes", "nvlink_received_bytes", "xgmi_sent_bytes", "xgmi_received_bytes")


@dataclass
class Reading:
    """One look: `gauges` and `counters` by name, and why there is none of those that `reasons` names."""

    gauges: dict[str, float] = field(default_factory=dict)
    counters: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    throttled: list[str] = field(default_factory=list)
    is_simulated: bool = False


class GpuMeter:
    """The GPUs that a slot with this environment sees, as `gpu0`, `gpu1` … in its own order."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._library = open_gpus()
        self.source = self._library.name
        self.failure: str | None = self._library.absent
        self.devices: list[Gpu] = []
        self._throttled: dict[int, list[str]] = {}
        gpus = {part: gpu for gpu in self._library.gpus() for part in (gpu.uuid, *gpu.slices)}
        try:
            visible = self._library.visible(environ)
        except UnknownOrderError:
            visible, self.failure = [], "unknown_order"
        self.devices = [Gpu(uuid, gpus[uuid].name) for uuid in visible]
        if not self.devices and self.failure is None:
            self.failure = Reason.NO_DEVICE

    @property
    def watches_clocks(self) -> bool:
        """Whether what throttles is read only where what is slow is due."""
        return self._library.watches_clocks

    def read(self, reading: Reading, pids: set[int], *, is_slow_due: bool) -> None:
        for index, device in enumerate(self.devices):
            told = self._library.read(device.uuid)
            slow = self._library.read_slow(device.uuid) if is_slow_due else None
            reading.is_simulated |= told.is_simulated
            for name, value in {**told.values, **(slow.values if slow else {})}.items():
                if value is not None:
                    (reading.counters if name in GPU_COUNTERS else reading.gauges)[f"gpu{index}.{name}"] = value
            for name, reason in {**told.reasons, **(slow.reasons if slow else {})}.items():
                reading.reasons[f"gpu{index}.{name}"] = reason
            for each in (told, slow):
                if each is not None and each.throttled_by is not None:
                    self._throttled[index] = [f"gpu{index}.{name}" for name in each.throttled_by if name != "idle"]
            reading.throttled += self._throttled.get(index, [])
            self._read_processes(reading, index, device.uuid, pids)

    def _read_processes(self, reading: Reading, index: int, uuid: str, pids: set[int]) -> None:
        """How much of the device's memory the probe holds, and how many others are on it."""
        held = self._library.processes(uuid)
        name = f"gpu{index}.probe_memory_bytes"
        if isinstance(held, Reason):
            reading.reasons[name] = held
            return
        reading.gauges[f"gpu{index}.strangers"] = float(len(held.keys() - pids))
        if mine := [size for pid, size in held.items() if pid in pids and size is not None]:
            reading.gauges[name] = float(sum(mine))
        else:
            reading.reasons[name] = "not_visible"  # it holds none yet, or the driver numbers processes otherwise

    def close(self) -> None:
        self._library.close()


def read_probe(reading: Reading, pids: set[int]) -> None:
    """Of the probe's processes: resident memory, each for itself; CPU seconds and bytes, those that have ended too."""
    resident, cpu_s, read, written, found = 0, 0.0, 0, 0, 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            with process.oneshot():
                resident += process.memory_info().rss
                found += 1
                cpu_s += sum(process.cpu_times()[:4])
                io = process.io_counters()
                read, written = read + io.read_bytes, written + io.write_bytes
    if found:
        reading.gauges["probe.memory_bytes"] = float(resident)
        reading.gauges["probe.processes"] = float(found)
        reading.counters |= {"probe.cpu_s": cpu_s, "probe.read_bytes": read, "probe.written_bytes": written}


def read_host(reading: Reading) -> None:
    """How busy the host is, and what its network and disks have moved, by everybody."""
    with contextlib.suppress(psutil.Error, OSError):
        reading.gauges["host.memory_available_bytes"] = float(psutil.virtual_memory().available)
    with contextlib.suppress(psutil.Error, OSError):
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        others = ("user", "nice", "system", "irq", "softirq", "steal")  # guest time is part of user time
        busy = float(sum(getattr(times, name, 0.0) for name in others))
        reading.counters |= {"host.cpu_busy_s": busy, "host.cpu_idle_s": idle}
    for name, ask, sent, received in (
        ("network", lambda: psutil.net_io_counters(nowrap=True), "bytes_sent", "bytes_recv"),
        ("disk", lambda: psutil.disk_io_counters(nowrap=True), "write_bytes", "read_bytes"),
    ):
        told = None
        with contextlib.suppress(psutil.Error, OSError, RuntimeError):
            told = ask()
        out, into = ("sent", "received") if name == "network" else ("written", "read")
        for word, key in ((out, sent), (into, received)):
            if told is None:
                reading.reasons[f"host.{name}_{word}_bytes"] = Reason.NOT_SUPPORTED
            else:
                reading.counters[f"host.{name}_{word}_bytes"] = float(getattr(told, key))


class Rapl:
    """The energy counters of the processor's packages (Linux powercap), readable by root only since 2020."""

    def __init__(self, folder: Path = RAPL) -> None:
        self._zones = sorted(folder.glob("intel-rapl:[0-9]*")) if folder.is_dir() else []
        self._zones = [zone for zone in self._zones if zone.name.count(":") == 1]

    def read(self, reading: Reading) -> None:
        if not self._zones:
            reading.reasons["host.energy_j"] = "unavailable"
            return
        try:
            joules = [int((zone / "energy_uj").read_text()) / 1e6 for zone in self._zones]
        except PermissionError:
            reading.reasons["host.energy_j"] = Reason.NO_PERMISSION
        except (OSError, ValueError):
            reading.reasons["host.energy_j"] = "unavailable"
        else:
            reading.counters["host.energy_j"] = sum(joules)


def process_tree(root: int) -> set[int]:
    """The processes below `root`, which is left out; from /proc, so none where there is no such thing."""
    found: set[int] = set()
    waiting = children_of(root)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children_of(pid))
    return found


def host_cpus() -> int:
    return os.cpu_count() or 1
