"""What an NVIDIA GPU says of itself, by NVIDIA's management library (NVML)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pynvml

from tuner.gpu_library import MAX_BYTES, MAX_BYTES_PER_S, MAX_POWER_W, GpuLibrary, Quantity, Reason
from tuner.visible_devices import Gpu, visible_uuids

ALL_LINKS = 0xFFFFFFFF
BF16_CAPABILITY = 8  # Ampere
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


def throttle_names(bits: int) -> tuple[str, ...]:
    """What slows the clocks down, in NVML's order; bits that are new to us by their number."""
    unknown = bits & ~sum(THROTTLE_REASONS)
    named = [name for bit, name in THROTTLE_REASONS.items() if bits & bit]
    return (*named, f"unknown_{unknown:#x}") if unknown else tuple(named)


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
        if _REASONS.get(error.value) is not Reason.OLD_DRIVER:
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


QUICK: Mapping[str, Quantity] = {
    "utilisation": Quantity(lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100, 0, 1),
    "memory_used_bytes": Quantity(lambda h: _memory(h).used, 0, MAX_BYTES),
    "memory_total_bytes": Quantity(lambda h: _memory(h).total, 1, MAX_BYTES),
    "power_w": Quantity(lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1000, 0, MAX_POWER_W),
    "temperature_c": Quantity(_temperature, -50, 150),
    "sm_clock_mhz": Quantity(lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM), 0, 10_000),
    "memory_clock_mhz": Quantity(lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_MEM), 0, 50_000),
    "energy_j": Quantity(lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1000, 0, 1e13),
    "nvlink_sent_bytes": Quantity(
        lambda h: _field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, h) * 1024, 0, float(1 << 63)
    ),
    "nvlink_received_bytes": Quantity(
        lambda h: _field(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, h) * 1024, 0, float(1 << 63)
    ),
}
# PCIe throughput: NVML watches the bus for 20 ms a direction.
SLOW: Mapping[str, Quantity] = {
    "pcie_sent_bytes_per_s": Quantity(
        lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, pynvml.NVML_PCIE_UTIL_TX_BYTES) * 1000, 0, MAX_BYTES_PER_S / 4
    ),
    "pcie_received_bytes_per_s": Quantity(
        lambda h: pynvml.nvmlDeviceGetPcieThroughput(h, pynvml.NVML_PCIE_UTIL_RX_BYTES) * 1000, 0, MAX_BYTES_PER_S / 4
    ),
}


class Nvml(GpuLibrary):
    """It tells devices by PCI bus."""

    name = "nvml"
    quick = QUICK
    slow = SLOW

    def __init__(self) -> None:
        self._failure = self._open()

    @property
    def is_simulated(self) -> bool:
        return hasattr(pynvml.nvmlLib, "x5tune_simulated")

    @property
    def absent(self) -> Reason | None:
        return None if self._failure is None else self.reason_of(self._failure)

    def processes(self, uuid: str) -> Mapping[int, int | None] | Reason:
        try:
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(self.handle(uuid))
        except pynvml.NVMLError as error:
            return self.reason_of(error)
        return {int(each.pid): each.usedGpuMemory for each in running}

    def has_bf16(self, uuid: str) -> bool | None:
        with contextlib.suppress(pynvml.NVMLError):
            major, _minor = pynvml.nvmlDeviceGetCudaComputeCapability(self.handle(uuid))
            return int(major) >= BF16_CAPABILITY
        return None

    def visible(self, environ: Mapping[str, str]) -> list[str]:
        return visible_uuids(self.gpus(), environ)

    def gpus(self) -> list[Gpu]:
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

    def handle(self, uuid: str) -> Any:
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

    def throttled_by(self, handle: Any) -> tuple[str, ...]:
        return throttle_names(_throttle(handle))

    def reason_of(self, error: Exception) -> Reason:
        if not isinstance(error, pynvml.NVMLError):
            raise error
        return _REASONS.get(error.value, Reason.FAILED)
