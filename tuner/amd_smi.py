"""What an AMD GPU says of itself, by AMD's system management library, where ROCm has brought its module `amdsmi`.

It is no dependency: the module has to be of the library's own version, and cannot be imported without the library.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tuner.gpu_library import MAX_BYTES, MAX_BYTES_PER_S, MAX_POWER_W, GpuLibrary, Quantity, Reason
from tuner.visible_devices import Gpu, visible_to_hip

NOT_TOLD = "N/A"
ALL_ONES = 0xFFFFFFFF
# What has a matrix unit for bfloat16: Instinct from MI100 on, Radeon from RDNA 3 on (AMD, "Precision support").
BF16_ARCHITECTURES = ("gfx908", "gfx90a", "gfx94", "gfx95", "gfx11", "gfx12")
THROTTLE_REASONS: Mapping[str, str] = {
    "active_ppt_pwr": "power_cap",
    "active_socket_thrm": "thermal",
    "active_hbm_thrm": "memory_thermal",
    "active_vr_thrm": "regulator_thermal",
    "active_prochot_thrm": "hardware_thermal",
}


class _UntoldError(Exception):
    """The library was asked and answered that it has no value."""


class AmdSmi(GpuLibrary):
    """A device's UUID is HIP's (`GPU-` and 16 digits), which is what ROCR_VISIBLE_DEVICES takes."""

    name = "amdsmi"
    watches_clocks = True

    def __init__(self) -> None:
        self._smi: Any = None
        self._failure: Reason | None = None
        self._handles: dict[str, Any] = {}
        self._open()
        is_there = self._smi is not None
        self.quick = _quick(self._smi) if is_there else {}
        self.slow = _slow(self._smi) if is_there else {}

    @property
    def is_simulated(self) -> bool:
        loaded = getattr(self._smi.amdsmi_wrapper, "_libraries", {}) if self._smi else {}
        return hasattr(loaded.get("libamd_smi.so"), "x5tune_simulated")

    @property
    def absent(self) -> Reason | None:
        return self._failure

    def gpus(self) -> list[Gpu]:
        """In HIP's order where the driver tells it, else by PCI bus."""
        if self._failure is not None:
            return []
        found = []
        for place, (uuid, handle) in enumerate(self._devices()):
            with contextlib.suppress(*_unanswered(self._smi)):
                name = self._smi.amdsmi_get_gpu_asic_info(handle)["market_name"]
                found.append((_hip_order(self._smi, handle, place), Gpu(uuid, str(name))))
        return [gpu for _, gpu in sorted(found, key=lambda each: each[0])]

    def visible(self, environ: Mapping[str, str]) -> list[str]:
        return visible_to_hip(self.gpus(), environ)

    def processes(self, uuid: str) -> Mapping[int, int | None] | Reason:
        try:
            running = self._smi.amdsmi_get_gpu_process_list(self.handle(uuid))
            return {int(each["pid"]): int(each["memory_usage"]["vram_mem"]) for each in running}
        except Exception as error:
            return self.reason_of(error)

    def has_bf16(self, uuid: str) -> bool | None:
        with contextlib.suppress(*_unanswered(self._smi), _UntoldError):
            told = self._smi.amdsmi_get_gpu_asic_info(self.handle(uuid))["target_graphics_version"]
            return str(told).startswith(BF16_ARCHITECTURES)
        return None

    def close(self) -> None:
        if self._failure is None:
            with contextlib.suppress(self._smi.AmdSmiException):
                self._smi.amdsmi_shut_down()
        self._failure, self._handles = Reason.NO_DRIVER, {}

    def handle(self, uuid: str) -> Any:
        if self._failure is not None and self._smi is not None:
            self._open()  # a driver may come back
        if self._failure is not None:
            raise _UntoldError(self._failure)
        if uuid not in self._handles:
            self._handles = dict(self._devices())
        if uuid not in self._handles:
            raise _UntoldError(Reason.NO_DEVICE)
        return self._handles[uuid]

    def throttled_by(self, handle: Any) -> tuple[str, ...]:
        """Only Instinct MI300 and later tell it; the library watches for a tenth of a second."""
        told = self._smi.amdsmi_get_violation_status(handle)
        if all(told[field] == NOT_TOLD for field in THROTTLE_REASONS):
            raise _UntoldError(Reason.NOT_SUPPORTED)
        return tuple(name for field, name in THROTTLE_REASONS.items() if told[field] is True)

    def reason_of(self, error: Exception) -> Reason:
        if isinstance(error, _UntoldError):
            return Reason(error.args[0])
        if self._smi is None or not isinstance(error, _unanswered(self._smi)):
            raise error
        if not isinstance(error, self._smi.AmdSmiException):
            return Reason.OLD_DRIVER
        reason = _reasons(self._smi).get(getattr(error, "err_code", None), Reason.FAILED)
        if reason is Reason.DEVICE_LOST:
            self._handles = {}  # a handle may not survive a reset
        return reason

    def _open(self) -> None:
        if self._smi is None:
            self._smi, self._failure = _binding()
        if self._smi is not None:
            self._failure = None
            try:
                self._smi.amdsmi_init(self._smi.AmdSmiInitFlags.INIT_AMD_GPUS)
            except self._smi.AmdSmiException as error:
                self._failure = self.reason_of(error)

    def _devices(self) -> Iterator[tuple[str, Any]]:
        for handle in self._smi.amdsmi_get_processor_handles():
            with contextlib.suppress(*_unanswered(self._smi)):
                yield _uuid(self._smi, handle), handle


def _binding() -> tuple[Any, Reason | None]:
    """AMD's module, or why there is none: it loads the driver's library when it is imported."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints that it has not found the library
            return importlib.import_module("amdsmi"), None
    except AttributeError:  # the library lacks a call that the module binds
        return None, Reason.OLD_DRIVER
    except (ImportError, OSError, KeyError):
        return None, Reason.NO_DRIVER


def _unanswered(smi: Any) -> tuple[type[Exception], ...]:
    """What the library raises, and what comes of a module of another version, which lacks a call or a field."""
    return smi.AmdSmiException, AttributeError, LookupError, TypeError, ValueError


def _reasons(smi: Any) -> Mapping[int | None, Reason]:
    codes = smi.amdsmi_wrapper
    return {
        codes.AMDSMI_STATUS_NOT_SUPPORTED: Reason.NOT_SUPPORTED,
        codes.AMDSMI_STATUS_NOT_YET_IMPLEMENTED: Reason.NOT_SUPPORTED,
        codes.AMDSMI_STATUS_NO_DATA: Reason.NOT_SUPPORTED,
        codes.AMDSMI_STATUS_NO_PERM: Reason.NO_PERMISSION,
        codes.AMDSMI_STATUS_FAIL_LOAD_MODULE: Reason.NO_DRIVER,
        codes.AMDSMI_STATUS_DRIVER_NOT_LOADED: Reason.NO_DRIVER,
        codes.AMDSMI_STATUS_NO_DRV: Reason.NO_DRIVER,
        codes.AMDSMI_STATUS_NOT_INIT: Reason.NO_DRIVER,
        codes.AMDSMI_STATUS_INIT_ERROR: Reason.NO_DRIVER,
        codes.AMDSMI_STATUS_FAIL_LOAD_SYMBOL: Reason.OLD_DRIVER,
        codes.AMDSMI_STATUS_NOT_FOUND: Reason.NO_DEVICE,
        codes.AMDSMI_STATUS_AMDGPU_RESTART_ERR: Reason.DEVICE_LOST,
        codes.AMDSMI_STATUS_IO: Reason.DEVICE_LOST,
    }


def _uuid(smi: Any, handle: Any) -> str:
    """HIP's; from the serial number, which is the same digits, where the driver is too old to tell it."""
    with contextlib.suppress(*_unanswered(smi)):
        if told := smi.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"]:
            return str(told)
    serial = str(smi.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
    return f"GPU-{serial.removeprefix('0x').lower()}"


def _hip_order(smi: Any, handle: Any, place: int) -> int:
    with contextlib.suppress(*_unanswered(smi)):
        told = smi.amdsmi_get_gpu_enumeration_info(handle)["hip_id"]
        if isinstance(told, int):
            return told
    return place


def _told(value: Any) -> float:
    """The number, where the library has one."""
    if value == NOT_TOLD:
        raise _UntoldError(Reason.NOT_SUPPORTED)
    return float(value)


def _power_w(smi: Any, handle: Any) -> float:
    """Now where that is told (Instinct MI300 and later), else the average of the last moments."""
    told = smi.amdsmi_get_power_info(handle)
    values = [told[key] for key in ("current_socket_power", "average_socket_power", "socket_power")]
    return _told(next((value for value in values if value not in (NOT_TOLD, ALL_ONES)), NOT_TOLD))


def _energy_j(smi: Any, handle: Any) -> float:
    told = smi.amdsmi_get_energy_count(handle)
    return float(told["energy_accumulator"] * told["counter_resolution"] / 1e6)


def _temperature_c(smi: Any, handle: Any) -> float:
    """The hottest spot's; the edge's where there is no such sensor."""
    now = smi.AmdSmiTemperatureMetric.CURRENT
    try:
        return float(smi.amdsmi_get_temp_metric(handle, smi.AmdSmiTemperatureType.HOTSPOT, now))
    except smi.AmdSmiException:
        return float(smi.amdsmi_get_temp_metric(handle, smi.AmdSmiTemperatureType.EDGE, now))


def _linked_bytes(smi: Any, handle: Any, key: str) -> float:
    told = smi.amdsmi_get_link_metrics(handle)
    return float(sum(link[key] for link in told["links"][: told["num_links"]])) * 1024


def _quick(smi: Any) -> Mapping[str, Quantity]:
    vram, clocks = smi.AmdSmiMemoryType.VRAM, smi.AmdSmiClkType

    def clock(kind: Any) -> Callable[[Any], float]:
        return lambda h: _told(smi.amdsmi_get_clock_info(h, kind)["clk"])

    return {
        "utilisation": Quantity(lambda h: _told(smi.amdsmi_get_gpu_activity(h)["gfx_activity"]) / 100, 0, 1),
        "memory_used_bytes": Quantity(lambda h: smi.amdsmi_get_gpu_memory_usage(h, vram), 0, MAX_BYTES),
        "memory_total_bytes": Quantity(lambda h: smi.amdsmi_get_gpu_memory_total(h, vram), 1, MAX_BYTES),
        "power_w": Quantity(lambda h: _power_w(smi, h), 0, MAX_POWER_W),
        "temperature_c": Quantity(lambda h: _temperature_c(smi, h), -50, 150),
        "sm_clock_mhz": Quantity(clock(clocks.GFX), 0, 10_000),
        "memory_clock_mhz": Quantity(clock(clocks.MEM), 0, 50_000),
        "energy_j": Quantity(lambda h: _energy_j(smi, h), 0, 1e13),
        "xgmi_sent_bytes": Quantity(lambda h: _linked_bytes(smi, h, "write"), 0, float(1 << 63)),
        "xgmi_received_bytes": Quantity(lambda h: _linked_bytes(smi, h, "read"), 0, float(1 << 63)),
    }


def _slow(smi: Any) -> Mapping[str, Quantity]:
    """Both directions of PCIe together, which is all that it tells at once; in Mbit/s there."""

    def pcie(handle: Any) -> float:
        return _told(smi.amdsmi_get_pcie_info(handle)["pcie_metric"]["pcie_bandwidth"]) * 1e6 / 8

    return {"pcie_bytes_per_s": Quantity(pcie, 0, MAX_BYTES_PER_S / 2)}
