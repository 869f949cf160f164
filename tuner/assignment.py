"""What travels between the coordinator in the runner and the slots: one assignment out, reports back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.records import Outcome, Point, ProbeRecord, Value


@dataclass(frozen=True, slots=True)
class Assignment:
    """One run that a slot is to make. `probe` is the content of X5TUNE_CONFIG.

    A run that is not `judged` (a confirmation) goes on from report to report without asking.
    """

    key: str
    probe: Mapping[str, Any]
    judged: bool = True


@dataclass(frozen=True, slots=True)
class SlotSetup:
    """What does not change between the assignments of a job."""

    workload: str
    metric: str
    folder: str
    environment: Mapping[str, str]
    cpus: float
    device_share: float
    device_name: str
    probe_seconds: float | None
    silence_seconds: float


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """How a probe ended by itself or by its slot's limits."""

    outcome: Outcome
    reason: str | None
    value: Value


@dataclass(frozen=True, slots=True)
class SlotReport:
    """What a slot knows after one step: new points, the state of the probe, and its end if it has ended."""

    points: tuple[Point, ...]
    position: float
    probe: ProbeRecord
    log_tail: str
    warnings: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)
    end: ProbeEnd | None = None
