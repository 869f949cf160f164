"""What an NVIDIA GPU says of itself (NVML): every value alone, with the reason where there is none.

NVML numbers devices by PCI bus, CUDA does not have to: a device is named by its UUID here (see
`tuner.visible_devices`). What it does not protect from: a driver that hangs holds up whoever reads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pynvml

from tuner.visible_devices import Gpu

ALL_LINKS = 0xFFFFFFFF
MAX_POWER_W = 5000.0
MAX_BYTES = 1 << 44
MAX_BYTES_PER_S = float(1 << 42)
THROTTLE_REASONS: Mapping[int, str] = {
    0x001: "idle",
    0x002: "clocks_set",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "thermal",
    0x040: "hardware_thermal",
    0x080: "power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}


class Reason(StrEnum):
    """Why there is no value. `old_driver` lacks the call; `implausible` was answered and cannot be true."""

    NOT_SUPPORTED = "not_supported"
    NO_PERMISSION = "no_permission"
    NO_DRIVER = "no_driver"
    OLD_DRIVER = "old_driver"
    NO_DEVICE = "no_device"
    DEVICE_LOST = "device_lost"
    IMPLAUSIBLE = "implausible"
    FAILED = "failed"


_REASONS: Mapping[int, Reason] = {
    pynvml.NVML_ERROR_UNINITIALIZED: Reason.NO_DRIVER,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: Reason.NO_DRIVER,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: Reason.NO_DRIVER,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: Reason.NO_DRIVER,
    pynvml.NVML_ERROR_NOT_SUPPORTED: Reason.NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: Reason.NO_PERMISSION,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: Reason.OLD_DRIVER,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: Reason.OLD_DRIVER,
    pynvml.NVML_ERROR_NOT_FOUND: Reason.NO_DEVICE,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: Reason.NO_DEVICE,
    pynvml.NVML_ERROR_GPU_IS_LOST: Reason.DEVICE_LOST,
    pynvml.NVML_ERROR_RESET_REQUIRED: Reason.DEVICE_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: Reason.DEVICE_LOST,
}


@dataclass(frozen=True, slots=True)
class Reading:
    """Values by name, None where there is none; then `reasons` has the reason under the same name.

    `is_simulated`: a library that stands in for NVML in tests said so of itself.
    """

    values: Mapping[str, float | None]
    reasons: Mapping[str, Reason]
    throttled_by: tuple[str, ...] | None
    is_simulated: bool


@dataclass(frozen=True, slots=True)
class _Quantity:
    """How a value is read and between which bounds it can be true."""

    read: Callable[[Any], float]
    low: float
    high: float


class Nvml:
    """NVML for as long as it is open; without a library or a driver it opens too, and every value says why.

    It belongs to the process that opened it: open another after a fork.
    """

    def __init__(self) -> None:
        self._failure = self._open()

    @property
    def is_simulated(self) -> bool:
        return hasattr(pynvml.nvmlLib, "x5tune_simulated")

    @property
    def absent(self) -> Reason | None:
        """Why there is nothing to read at all, None where there is."""
        return None if self._failure is None else reason_of(self._failure)

    def read(self, uuid: str) -> Reading:
        """What takes microseconds, for once a second. Energy and NVLink are counters (see `increase`)."""
        return self._read(uuid, QUICK, with_throttle=True)

    def read_slow(self, uuid: str) -> Reading:
        """PCIe throughput: NVML watches the bus for 20 ms a direction."""
        return self._read(uuid, SLOW, with_throttle=False)

    def processes(self, uuid: str) -> Mapping[int, int | None] | Reason:
        """Bytes of device memory by process, None where the driver does not tell how much.

        In a container NVML may number processes as the host does, or leave out those of others.
        """
        try:
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle(uuid))
        except pynvml.NVMLError as error:
            return reason_of(error)
        return {int(each.pid): each.usedGpuMemory for each in running}

    def capability(self, uuid: str) -> float | None:
        """CUDA's compute capability, 8.0 for an A100; None where it is not told."""
        with contextlib.suppress(pynvml.NVMLError):
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(self._handle(uuid))
            return float(f"{major}.{minor}")
        return None

    def gpus(self) -> list[Gpu]:
        """All GPUs by PCI bus, which is NVML's order; one that cannot be asked is left out."""
        found = []
        for index in range(0 if self._failure else self._count()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                uuid, name = pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle)
            except pynvml.NVMLError:
                continue
            found.append(Gpu(str(uuid), str(name), _slices(handle)))
        return found

    def close(self) -> None:
        if self._failure is None:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
        self._failure = pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    @staticmethod
    def _open() -> Any:
        """The error that keeps NVML from being opened, None when it is open."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return error
        return None

    def _read(self, uuid: str, quantities: Mapping[str, _Quantity], *, with_throttle: bool) -> Reading:
        values: dict[str, float | None] = dict.fromkeys(quantities)
        reasons: dict[str, Reason] = {}
        throttled_by: tuple[str, ...] | None = None
        try:
            # Asked for each time: a handle does not survive a reset of its device.
            handle = self._handle(uuid)
        except pynvml.NVMLError as error:
            if reason_of(error) is Reason.NO_DRIVER:
                self.close()  # the next reading opens it again
            reasons = dict.fromkeys([*quantities, *(["throttled_by"] if with_throttle else [])], reason_of(error))
            return Reading(values, reasons, None, self.is_simulated)
        for name, quantity in quantities.items():
            try:
                values[name] = plausible(quantity.read(handle), quantity.low, quantity.high)
            except pynvml.NVMLError as error:
                reasons[name] = reason_of(error)
            except ValueError:
                reasons[name] = Reason.IMPLAUSIBLE
        used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
        if used is not None and total is not None and used > total:
            values["memory_used_bytes"], reasons["memory_used_bytes"] = None, Reason.IMPLAUSIBLE
        if with_throttle:
            try:
                throttled_by = throttle_names(_throttle(handle))
            except pynvml.NVMLError as error:
                reasons["throttled_by"] = reason_of(error)
        return Reading(values, reasons, throttled_by, self.is_simulated)

    def _handle(self, uuid: str) -> Any:
        if self._failure is not None:
            self._failure = self._open()  # a driver may come back
        if self._failure is not None:
            raise self._failure
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)

    @staticmethod
    def _count() -> int:
        try:
            return int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError:
            return 0


def plausible(value: float, low: float, high: float) -> float:
    """`value` where it can be true, else ValueError: drivers answer all ones, or the last word before a reset."""
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(value)
    return value


def increase(before: float | None, after: float | None, high: float) -> float | None:
    """How much a counter went up; None where it was not read, was reset, or rose by more than `high`."""
    if before is None or after is None or not 0 <= after - before <= high:
        return None
    return after - before


def throttle_names(bits: int) -> tuple[str, ...]:
    """What slows the clocks down, in NVML's order; bits that are new to us by their number."""
    unknown = bits & ~sum(THROTTLE_REASONS)
    named = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    return (*named, f"unknown_{unknown:#x}") if unknown else tuple(named)


def reason_of(error: pynvml.NVMLError) -> Reason:
    return _REASONS.get(error.value, Reason.FAILED)


def _slices(handle: Any) -> tuple[str, ...]:
    """The UUIDs of a GPU's MIG devices, none where it is not divided."""
    found = []
    with contextlib.suppress(pynvml.NVMLError):
        for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(pynvml.NVMLError):  # a place that is not taken
                part = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                found.append(str(pynvml.nvmlDeviceGetUUID(part)))
    return tuple(found)


def _either(new: Callable[[Any], Any], old: Callable[[Any], Any], handle: Any) -> Any:
    """What `new` says, or `old` where the driver is too old for it."""
    try:
        return new(handle)
    except pynvml.NVMLError as error:
        if reason_of(error) is not Reason.OLD_DRIVER:
            raise
        return old(handle)


def _throttle(handle: Any) -> int:
    new, old = pynvml.nvmlDeviceGetCurrentClocksEventReasons, pynvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return int(_either(new, old, handle))


def _temperature(handle: Any) -> float:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    new, old = pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature
    return float(_either(lambda h: new(h, sensor), lambda h: old(h, sensor), handle))


def _memory(handle: Any) -> Any:
    """Total and used; what the driver keeps for itself counts as used only where an old one cannot tell it apart."""
    ask = pynvml.nvmlDeviceGetMemoryInfo
    return _either(lambda h: ask(h, pynvml.nvmlMemory_v2), ask, handle)


def _field(field: int, handle: Any) -> int:
    """A counter of NVLink, over all links, in KiB."""
    [answer] = pynvml.nvmlDeviceGetFieldValues(handle, [(field, ALL_LINKS)])
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(answer.nvmlReturn)
    return int(answer.value.ullVal)


QUICK: Mapping[str, _Quantity] = {
    "utilisation": _Quantity(lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100, 0, 1),
    "memory_used_bytes": _Quantity(lambda h: _memory(h).used, 0, MAX_BYTES),
    "memory_total_bytes": _Quantity(lambda h: _memory(h).total, 1, MAX_BYTES),
    "power_w": _Quantity(lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000, 0, MAX_POWER_W),
    "temperature_c": _Quantity(_temperature, -50, 150),
    "sm_clock_mhz": _Quantity(lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM), 0, 10_000),
    "memory_clock_mhz": _Quantity(lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM), 0, 50_000),
    "energy_j": _Quantity(lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000, 0, 1e13),
    "nvlink_sent_bytes": _Quantity(
        lambda h: _field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, h) * 1024, 0, float(1 << 63)
    ),
    "nvlink_received_bytes": _Quantity(
        lambda h: _field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, h) * 1024, 0, float(1 << 63)
    ),
}
SLOW: Mapping[str, _Quantity] = {
    "pcie_sent_bytes_per_s": _Quantity(
        lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, pynvml.NVML_PCIE_UTIL_TX_BYTES) * 1000, 0, MAX_BYTES_PER_S / 4
    ),
    "pcie_received_bytes_per_s": _Quantity(
        lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, pynvml.NVML_PCIE_UTIL_RX_BYTES) * 1000, 0, MAX_BYTES_PER_S / 4
    ),
}
