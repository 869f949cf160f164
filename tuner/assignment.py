"""What travels between the coordinator in the runner and the slots: one assignment out, reports back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.command import fill, without
from tuner.jobspec import MetricSource, UserCode
from tuner.metric_files import metric_file
from tuner.probe_lines import output_pattern
from tuner.probe_process import ProbeOrder
from tuner.records import Outcome, Point, ProbeRecord, Value
from tuner.reports import Mark
from tuner.torchrun import launched, meeting_place


@dataclass(frozen=True, slots=True)
class Assignment:
    """One run that a slot is to make. `probe` is the content of X5TUNE_CONFIG.

    A run that is not `judged` (a confirmation) goes on from report to report without asking. `fit` is what a run is to
    measure instead of training; one that takes more than `cap_bytes` on the host is ended. A run that goes on from a
    pause gets that one's `mark`.
    """

    key: str
    probe: Mapping[str, Any]
    judged: bool = True
    fit: Literal["predict", "prove", "diagnose", "rates", "precisions"] | None = None
    cap_bytes: int | None = None
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class SlotSetup:
    """What does not change between the assignments of a job."""

    workload: str
    code: UserCode | None
    metrics: MetricSource | None
    metric: str
    folder: str
    environment: Mapping[str, str]
    cpus: float
    device_share: float
    gpus: float
    device_name: str
    probe_seconds: float | None
    silence_seconds: float
    host_memory_mib: float | None = None
    processes: int = 1
    disk_mib: float | None = None
    device_wait_s: float = 0.0

    @property
    def threads(self) -> float:
        """CPUs that one process may use."""
        return self.cpus / self.processes

    @property
    def shares_its_device(self) -> bool:
        """Whether other slots may use the same GPU."""
        return not float(self.gpus).is_integer()

    @property
    def own_environment(self) -> dict[str, str]:
        """What the warm parent gets: the job's variables, over what several processes need to find each other here."""
        return {**(meeting_place() if self.processes > 1 else {}), **self.environment}

    def to_load(self) -> dict[str, Any]:
        """What the warm parent is to import: a built-in, the user's function or class, or nothing for a command."""
        if self.code is None:
            return {"workload": self.workload, "processes": self.processes}
        if not self.code.target:
            return {}
        named = {"target": self.code.target, "folder": self.code.folder, "metric": self.metric}
        return {**named, "processes": self.processes}

    def order(self, probe: Mapping[str, Any], run_dir: Path) -> ProbeOrder:
        """How a probe on this configuration is started; `run_dir` is its own folder."""
        memory_bytes = None if self.host_memory_mib is None else int(self.host_memory_mib * (1 << 20))
        if self.code is None:
            return ProbeOrder(memory_bytes=memory_bytes)
        fixed = {"seed": probe["seed"], "processes": self.processes, "run_dir": str(run_dir)}
        values = {**probe["parameters"], **probe["derived"], **fixed}
        template = without(self.code.argv, values)
        filled = fill(template, values)
        argv = launched(template, filled, self.processes) if filled else None
        pattern = output_pattern(self.metrics, self.metric, self.processes)
        file = metric_file(self.metrics, run_dir, self.metric)
        return ProbeOrder(argv, self.code.folder, pattern, memory_bytes, file)


@dataclass(frozen=True, slots=True)
class ProbeEnd:
    """How a probe ended by itself or by its slot's limits.

    `is_fatal`: no trial of this job can end otherwise (the user's module cannot be imported), so the job is given up.
    """

    outcome: Outcome
    reason: str | None
    value: Value
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class SlotReport:
    """What a slot knows after one step: new points, the state of the probe, and its end if it has ended.

    `fit` is what a run of phase `fit` has measured, when it has ended. `can_pause`: told to pause at its last report,
    the probe would leave a checkpoint. `mark` is where it was when it has ended as `paused`.

    `notes` are remarks of the probe by name, each of them in `warnings` and `health` too.
    """

    points: tuple[Point, ...]
    position: float
    probe: ProbeRecord
    log_tail: str
    warnings: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    end: ProbeEnd | None = None
    fit: Mapping[str, Any] | None = None
    can_pause: bool = False
    mark: Mark | None = None
