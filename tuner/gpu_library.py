"""What a GPU says of itself, whoever made it: every value alone, with the reason where there is none.

A device is named by its UUID here: the vendors' libraries number devices by PCI bus, their runtimes do not have to (see
`tuner.visible_devices`). What it does not protect from: a driver that hangs holds up whoever reads.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from tuner.visible_devices import Gpu

MAX_POWER_W = 5000.0
MAX_BYTES = 1 << 44
MAX_BYTES_PER_S = float(1 << 42)


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
class Quantity:
    """How a value is read and between which bounds it can be true."""

    read: Callable[[Any], float]
    low: float
    high: float


class GpuLibrary(ABC):
    """A vendor's library for as long as it is open; without one or its driver it opens too, and every value says why.

    It belongs to the process that opened it: open another after a fork.
    """

    name: ClassVar[str]
    watches_clocks: ClassVar[bool] = False
    """Whether it takes a while to tell what throttles: then it is told with what is slow."""
    quick: Mapping[str, Quantity]
    """What takes microseconds, for once a second. Energy and links are counters (see `increase`)."""
    slow: Mapping[str, Quantity]
    """What takes longer, for once in ten seconds."""

    @property
    @abstractmethod
    def is_simulated(self) -> bool: ...

    @property
    @abstractmethod
    def absent(self) -> Reason | None:
        """Why there is nothing to read at all, None where there is."""

    @abstractmethod
    def gpus(self) -> list[Gpu]:
        """All GPUs in the library's own order; one that cannot be asked is left out."""

    @abstractmethod
    def visible(self, environ: Mapping[str, str]) -> list[str]:
        """The UUIDs that a process with this environment sees, in its order. Raises `UnknownOrderError`."""

    @abstractmethod
    def processes(self, uuid: str) -> Mapping[int, int | None] | Reason:
        """Bytes of device memory by process, None where the driver does not tell how much.

        In a container the driver may number processes as the host does, or leave out those of others.
        """

    @abstractmethod
    def has_bf16(self, uuid: str) -> bool | None:
        """Whether it computes in bfloat16; None where that is not told."""

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def handle(self, uuid: str) -> Any:
        """What the library knows the device by. Raises what the library raises."""

    @abstractmethod
    def throttled_by(self, handle: Any) -> tuple[str, ...]:
        """What slows the clocks down. Raises what the library raises."""

    @abstractmethod
    def reason_of(self, error: Exception) -> Reason:
        """Why the library raised `error`; raises it again where the library did not."""

    def read(self, uuid: str) -> Reading:
        return self._read(uuid, self.quick, with_throttle=not self.watches_clocks)

    def read_slow(self, uuid: str) -> Reading:
        return self._read(uuid, self.slow, with_throttle=self.watches_clocks)

    def _read(self, uuid: str, quantities: Mapping[str, Quantity], *, with_throttle: bool) -> Reading:
        values: dict[str, float | None] = dict.fromkeys(quantities)
        reasons: dict[str, Reason] = {}
        throttled_by: tuple[str, ...] | None = None
        try:
            # Asked for each time: a handle does not survive a reset of its device.
            handle = self.handle(uuid)
        except Exception as error:
            reason = self.reason_of(error)
            reasons = dict.fromkeys([*quantities, *(["throttled_by"] if with_throttle else [])], reason)
            return self._told(values, reasons, None)
        for name, quantity in quantities.items():
            try:
                values[name] = plausible(quantity.read(handle), quantity.low, quantity.high)
            except ValueError:
                reasons[name] = Reason.IMPLAUSIBLE
            except Exception as error:
                reasons[name] = self.reason_of(error)
        used, total = values.get("memory_used_bytes"), values.get("memory_total_bytes")
        if used is not None and total is not None and used > total:
            values["memory_used_bytes"], reasons["memory_used_bytes"] = None, Reason.IMPLAUSIBLE
        if with_throttle:
            try:
                throttled_by = self.throttled_by(handle)
            except Exception as error:
                reasons["throttled_by"] = self.reason_of(error)
        return self._told(values, reasons, throttled_by)

    def _told(
        self, values: Mapping[str, float | None], reasons: Mapping[str, Reason], throttled_by: tuple[str, ...] | None
    ) -> Reading:
        if Reason.NO_DRIVER in reasons.values():
            self.close()  # the next reading opens it again
        return Reading(values, reasons, throttled_by, self.is_simulated)


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
