"""Waiting, between two probes, for a GPU that is hot or that others use: what it did then is not the configuration's.

Never within a probe, so that no number depends on it. On the CPU nothing is waited for: which of the host's load is the
job's own, of its other slots and of their data loading, cannot be told from here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tuner.foreseen import given_s
from tuner.jobspec import ResolvedJob
from tuner.meters import Reading

HOT = ("thermal", "hardware_thermal", "memory_thermal", "regulator_thermal", "hardware_slowdown", "power_brake")
"""What throttles a GPU for want of cooling or power; a power cap is how some are meant to run."""
LOADED = 0.2
"""Utilisation from which on somebody else's process takes away from ours."""
MARKED = 0.1
"""Share of a probe's samples."""
EACH_S, ALL_S, SHARE = 60.0, 600.0, 0.05


def most_s(job: ResolvedJob) -> float:
    """What a slot waits at most during the whole job: a share of the budget where that is given in time or money."""
    given = given_s(job.budget, job.resources)
    return ALL_S if given is None else min(ALL_S, SHARE * given)


def trouble(reading: Reading, *, is_shared: bool) -> str | None:
    """What keeps the GPUs of a slot, on which none of its probes runs, from giving all that they have.

    One that is shared on purpose, by slots with a fraction of it each, is not asked who uses it.
    """
    for name in reading.throttled:
        gpu, _, why = name.partition(".")
        if why in HOT:
            return f"{gpu} is throttled ({why})"
    for name, strangers in reading.gauges.items():
        gpu, _, what = name.partition(".")
        utilisation = reading.gauges.get(f"{gpu}.utilisation", 0.0)
        if what == "strangers" and strangers > 0 and utilisation >= LOADED and not is_shared:
            return f"{gpu} is used by {strangers:.0f} other processes, {utilisation:.0%} of the time"
    return None


def mark(telemetry: Mapping[str, Any], *, is_shared: bool) -> str | None:
    """What a probe was measured under, if that was more than a moment; None where all was well or is not known."""
    for name, share in telemetry["throttled"].items():
        gpu, _, why = name.partition(".")
        if why in HOT and share >= MARKED:
            return f"{gpu} was throttled ({why}) in {share:.0%} of the time"
    for name, seen in telemetry["quantities"].items():
        gpu, _, what = name.partition(".")
        is_seen = f"{gpu}.probe_memory_bytes" in telemetry["quantities"]  # else our own may be taken for others
        if what == "strangers" and seen["mean"] >= MARKED and is_seen and not is_shared:
            return f"{gpu} was used by {seen['max']:.0f} other processes too"
    return None


class DeviceWait:
    """Of one slot. `look` gives a reading of its GPUs, None where nothing is known; `left_s` is what may be waited."""

    def __init__(
        self,
        look: Callable[[], Reading | None],
        left_s: float,
        *,
        is_shared: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._is_shared, self._clock = look, is_shared, clock
        self._left_s = left_s
        self._began: float | None = None

    def ask(self) -> tuple[bool, str | None]:
        """Whether the next probe may start, and what there is to say about it."""
        reading = self._look()
        wrong = None if reading is None else trouble(reading, is_shared=self._is_shared)
        now = self._clock()
        waited_s = 0.0 if self._began is None else now - self._began
        if wrong is not None and waited_s < min(EACH_S, self._left_s):
            self._began = now if self._began is None else self._began
            return False, f"waits for the device: {wrong}"
        self._left_s = max(0.0, self._left_s - waited_s)
        self._began = None
        if wrong is not None:
            return True, f"starts although {wrong}, after {waited_s:.0f} s of waiting"
        return True, f"waited {waited_s:.0f} s for the device" if waited_s else None
