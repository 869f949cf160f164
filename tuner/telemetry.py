"""What was measured while a probe ran: a summary that is kept for ever, and a trace of bounded length.

Pure: the readings come from `tuner.telemetry_sampler`. A quantity is named after what it belongs to, `gpu0.power_w`,
`probe.memory_bytes`, `host.cpu_share`; one without a value has a reason under the same name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_POINTS = 600
"""Samples that are kept of a probe; where there are more, neighbours are averaged."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at everything. `throttled` names what slows each GPU's clocks down."""

    values: Mapping[str, float | None]
    reasons: Mapping[str, str] = field(default_factory=dict)
    throttled: Sequence[str] = ()


@dataclass
class _Sum:
    """A quantity over time, or its share of a trial made of several probes."""

    weight: float = 0.0
    total: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def add(self, mean: float, weight: float = 1.0, low: float | None = None, high: float | None = None) -> None:
        self.weight += weight
        self.total += mean * weight
        self.low = min(self.low, mean if low is None else low)
        self.high = max(self.high, mean if high is None else high)

    def told(self) -> dict[str, float]:
        return {"mean": self.total / self.weight, "min": self.low, "max": self.high}


class Recording:
    """The samples of one probe, at `at_s` seconds from its start."""

    def __init__(self) -> None:
        self.samples = 0
        self._sums: dict[str, _Sum] = {}
        self._reasons: dict[str, str] = {}
        self._throttled: dict[str, int] = {}
        self._trace = Trace()

    def add(self, at_s: float, sample: Sample) -> None:
        self.samples += 1
        known = {name: value for name, value in sample.values.items() if value is not None}
        for name, value in known.items():
            self._sums.setdefault(name, _Sum()).add(value)
        self._reasons.update({name: str(reason) for name, reason in sample.reasons.items()})
        for name in sample.throttled:
            self._throttled[name] = self._throttled.get(name, 0) + 1
        self._trace.add(at_s, known)

    def summary(self) -> dict[str, Any]:
        """Mean, least and most of each quantity; reasons of those never read; shares of the samples throttled."""
        return {
            "samples": self.samples,
            "quantities": {name: each.told() for name, each in sorted(self._sums.items())},
            "reasons": {name: why for name, why in sorted(self._reasons.items()) if name not in self._sums},
            "throttled": {name: count / self.samples for name, count in sorted(self._throttled.items())},
        }

    def trace(self) -> dict[str, Any]:
        return self._trace.told()


class Trace:
    """At most MAX_POINTS points: when they are full, each two neighbours become one, their mean."""

    def __init__(self) -> None:
        self._each = 1  # samples that make a point
        self._points: list[tuple[int, float, dict[str, _Sum]]] = []

    def add(self, at_s: float, values: Mapping[str, float]) -> None:
        if not self._points or self._points[-1][0] >= self._each:
            if len(self._points) >= MAX_POINTS:
                self._halve()
            self._points.append((0, 0.0, {}))
        count, seconds, sums = self._points[-1]
        for name, value in values.items():
            sums.setdefault(name, _Sum()).add(value)
        self._points[-1] = (count + 1, seconds + at_s, sums)

    def _halve(self) -> None:
        merged = []
        for (count, seconds, sums), (more, later, others) in zip(self._points[::2], self._points[1::2], strict=True):
            for name, each in others.items():
                sums.setdefault(name, _Sum()).add(each.total / each.weight, each.weight)
            merged.append((count + more, seconds + later, sums))
        self._points, self._each = merged, self._each * 2

    def told(self) -> dict[str, Any]:
        """`seconds` from the probe's start, and each quantity's values at them, null where there was none."""
        names = sorted({name for _, _, sums in self._points for name in sums})
        return {
            "seconds": [round(seconds / count, 3) for count, seconds, _ in self._points],
            "values": {
                name: [sums[name].total / sums[name].weight if name in sums else None for _, _, sums in self._points]
                for name in names
            },
        }


def merged(probes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of a trial from those of its probes: means weighted by their samples, energy summed.

    Energy is null as soon as one probe's is, with that probe's reason. Empty without any probe.
    """
    parts = [probe for probe in probes if probe]
    if not parts:
        return {}
    sums: dict[str, _Sum] = {}
    throttled: dict[str, float] = {}
    samples = sum(part["samples"] for part in parts)
    for part in parts:
        for name, told in part["quantities"].items():
            sums.setdefault(name, _Sum()).add(told["mean"], max(1, part["samples"]), told["min"], told["max"])
        for name, share in part["throttled"].items():
            throttled[name] = throttled.get(name, 0.0) + share * part["samples"] / samples
    reasons = {name: why for part in parts for name, why in part["reasons"].items() if name not in sums}
    unknown = next((part for part in parts if part["energy_j"] is None), None)
    counted = [part["counted"] for part in parts]
    return {
        "source": parts[-1]["source"],
        "is_simulated": any(part["is_simulated"] for part in parts),
        "devices": parts[-1]["devices"],
        "seconds": sum(part["seconds"] for part in parts),
        "samples": samples,
        "quantities": {name: each.told() for name, each in sorted(sums.items())},
        "counted": {
            name: sum(each.get(name) or 0.0 for each in counted) for name in sorted({n for c in counted for n in c})
        },
        "reasons": dict(sorted(reasons.items())),
        "throttled": throttled,
        "energy_j": None if unknown else sum(part["energy_j"] for part in parts),
        "energy_source": parts[-1]["energy_source"],
        "energy_reason": unknown["energy_reason"] if unknown else None,
    }
