"""The contract between a probe and the workload that it runs; no torch, no Ray, standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from workloads.manifest import Axis

Split = Literal["validation", "test"]
Precision = Literal["fp32", "bf16", "fp16"]

PROGRESS = ("step", "samples", "tokens", "seconds", "epoch")
"""Names in a report that say how far the run is, and so cannot be metrics."""


class Stop(Exception):  # noqa: N818 - a signal to the workload, not an error
    """Raised by `Probe.report` when the tuner wants this probe to end; `reason` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Pause(Stop):
    """Raised by `Probe.report` when the run is to be gone on with later: whoever keeps its state saves it first."""


class CheckpointError(Exception):
    """A run cannot go on from the checkpoint that it was given; the message says why."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How long a full run is: `max` units of `axis`, reported about `reports` times.

    `max` is infinite (in JSON null) while nobody knows it: the first run of the user's own code shows it by its end.
    """

    axis: Axis
    max: float
    reports: int

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.max)

    def index(self, position: float) -> int:
        """The report index (0 .. reports) that `position` has reached; 0 before the first due point."""
        return max(0, min(self.reports, math.floor(position / self.max * self.reports + 1e-9)))

    def to_json(self) -> dict[str, Any]:
        return {"axis": self.axis, "max": self.max if self.is_known else None, "reports": self.reports}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Fidelity:
        return Fidelity(data["axis"], math.inf if data["max"] is None else data["max"], data["reports"])


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What one probe is asked to train; the content of the file that `X5TUNE_CONFIG` names.

    `derived` holds `micro_batch`, `accumulation` and `loss_scale` (a number or "auto"). `split` says which data the
    objective is evaluated on: `test` only in confirmation runs. `fit` asks for a measurement of memory instead of a run
    (see `workloads.memory_proof`).

    `checkpoint_dir` is the folder that a pause leaves the run's state in; None: this run cannot be paused. `resume_dir`
    is the one that an earlier run of the trial has left: this one goes on from there, where `resume_at` says `step`,
    `position` and `index` of its last report. `activations` asks for those in the health (`workloads.activations`).
    """

    parameters: Mapping[str, Any]
    derived: Mapping[str, Any]
    seed: int
    fidelity: Fidelity
    device: str
    precision: Precision
    trial: int
    job_id: str
    split: Split = "validation"
    resume_dir: str | None = None
    resume_at: Mapping[str, Any] | None = None
    checkpoint_dir: str | None = None
    fit: Mapping[str, Any] | None = None
    activations: bool = False


class Probe(Protocol):
    """What a workload sees of the tuner while it trains; `probe.Stop` is the exception that `report` raises."""

    @property
    def steps(self) -> int:
        """Planned optimizer steps; on the seconds axis an upper bound that is never reached."""

    def due(self, step: int) -> bool:
        """Whether a report is due after `step` (1-based) optimizer steps."""

    def report(self, *, step: int, **metrics: float) -> None:
        """Hand in metrics and wait for the decision.

        `samples`, `tokens` or `seconds` among `metrics` say how far the run is; `samples` defaults to step x
        batch_size. Raises `Stop` when the trial is to end, `Pause` among them. NaN and infinities are allowed.
        """


class Workload(Protocol):
    """What the warm parent runs in a forked child: constructed once in the parent, `run` called once per child.

    One whose attribute `can_pause` is true saves its state to `checkpoint_dir` when `Probe.report` raises `Pause`,
    lets that pass, and goes on from `resume_dir` with the numbers of a run that was never interrupted.
    """

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        """Train one probe to its end; raise `Diverged` on a non-finite loss, let `Stop` pass through."""


class Diverged(ArithmeticError):  # noqa: N818 - the name of an outcome
    """Training met a loss or gradient that is not finite; the message says at which step."""


class UnknownParameterError(KeyError):
    """A trial has no parameter of this name; the message lists those that it has."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotes


class Parameters(dict[str, Any]):
    """A trial's parameters by name; a name that is none of them is told with those that are."""

    def __missing__(self, name: str) -> Any:
        raise UnknownParameterError(f"{name!r} is no parameter of this trial; there are: {', '.join(sorted(self))}")
