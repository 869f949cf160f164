"""The values that a study hands to its observer, and the words for how things end."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol

from tuner.jobspec import ResolvedJob

ValueKind = Literal["finite", "nan", "+inf", "-inf", "missing"]


class Outcome(StrEnum):
    """How a probe ended."""

    OK = "ok"
    PRUNED = "pruned"
    DIVERGED = "diverged"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    NO_METRIC = "no_metric"
    CANCELLED = "cancelled"
    LOST = "lost"
    PAUSED = "paused"
    """Of a probe only: its trial is not over, and another probe may go on from where this one was."""


class Phase(StrEnum):
    """The phases of a job, in order."""

    FIT = "fit"
    SEARCH = "search"
    CONFIRM = "confirm"


class StopReason(StrEnum):
    """Why a job's search ended."""

    TRIALS = "trials"
    FULL_RUNS = "full_runs"
    SECONDS = "seconds"
    DEVICE_HOURS = "device_hours"
    ENERGY = "energy"
    COST = "cost"
    CONVERGED = "converged"
    SPACE_EXHAUSTED = "space_exhausted"
    FAILURES = "failures"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Value:
    """A metric that JSON may not be able to hold: `number` is None unless `kind` is `finite`."""

    number: float | None
    kind: ValueKind

    @staticmethod
    def of(number: float | None) -> Value:
        if number is None:
            return Value(None, "missing")
        if math.isnan(number):
            return Value(None, "nan")
        if math.isinf(number):
            return Value(None, "+inf" if number > 0 else "-inf")
        return Value(number, "finite")

    @property
    def is_finite(self) -> bool:
        return self.kind == "finite"


@dataclass(frozen=True, slots=True)
class Point:
    """One report on a trial's curve. `index` is 1 .. reports, `position` is on the fidelity axis."""

    index: int
    position: float
    step: int
    value: Value


@dataclass(frozen=True, slots=True)
class TrialStarted:
    """A trial has its configuration and waits for a slot or runs in one."""

    number: int
    is_baseline: bool
    parameters: Mapping[str, Any]
    derived: Mapping[str, Any]
    seed: int
    retry_of: int | None = None


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One training process: wall seconds from fork to exit, and how it ended.

    `telemetry` is a summary that `tuner.telemetry.merged` takes, `trace` the samples behind it. `energy_j` is None
    where it cannot be told; the summary says why.
    """

    seconds: float
    device_seconds: float
    exit_status: int | None
    pid: int | None
    device: str
    peak_memory_bytes: int | None = None
    energy_j: float | None = None
    telemetry: Mapping[str, Any] = field(default_factory=dict)
    trace: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeEnded:
    """A probe of a trial has ended, not the trial: that `is_paused`, or another probe starts, with what `derived` says.

    `probe` is None where nobody could follow it to its end; `point` is where a paused trial stands.
    """

    outcome: Outcome
    reason: str | None
    derived: Mapping[str, Any]
    probe: ProbeRecord | None
    point: Point | None = None
    log_tail: str = ""
    warnings: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_paused(self) -> bool:
        return self.point is not None


@dataclass(frozen=True, slots=True)
class TrialEnded:
    """A trial's end; `value` is the last value that it reported. `probe` is the one that ended with it, if one did."""

    number: int
    outcome: Outcome
    reason: str | None
    value: Value
    log_tail: str
    probe: ProbeRecord | None
    warnings: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EarlierEnd:
    """How a trial ended that an earlier attempt has told its observer of; `position` is where its last report was."""

    outcome: Outcome
    value: float | None
    position: float
    device_seconds: float


@dataclass(frozen=True, slots=True)
class Confirmation:
    """One confirmation run, at the full horizon on a fresh seed. `trial` is the number of the trial confirmed.

    `value` is measured on the untouched test split where the workload has one (`split` says which), else on
    validation data.
    """

    trial: int
    is_baseline: bool
    seed: int
    outcome: Outcome
    reason: str | None
    value: Value
    split: str
    probe: ProbeRecord | None
    log_tail: str = ""


@dataclass(frozen=True, slots=True)
class Frontier:
    """The largest micro-batch that fits; `cap_bytes` is what may be used of the limit.

    `peak_bytes` is its proven peak, None where a later out-of-memory has put the frontier below what was proven.
    `can_cut`: the workload takes a larger batch in pieces of that size; else it is the largest batch of a process.
    `checkpointing`: it was proven with activations that are computed again.
    """

    micro_batch: int
    peak_bytes: int | None
    limit_bytes: int
    cap_bytes: int
    samples_per_s: float | None = None
    can_cut: bool = True
    checkpointing: bool = False

    def evidence(self) -> dict[str, Any]:
        """As a recipe shows it: smaller micro-batches take no more."""
        return {
            "proven_micro_batch": self.micro_batch if self.peak_bytes is not None else None,
            "proven_peak_bytes": self.peak_bytes,
            "limit_bytes": self.limit_bytes,
            "cap_bytes": self.cap_bytes,
            "samples_per_s": self.samples_per_s,
            "checkpointing": self.checkpointing,
        }


@dataclass(frozen=True, slots=True)
class RecipeDraft:
    """A recommended configuration with its evidence.

    `difference` is the mean improvement over the baseline in units of the metric, positive when better whatever the
    direction; `interval` holds it with the `confidence` that `tuner.confirmation` documents.
    """

    trial: int
    rank: int
    status: Literal["proven", "provisional"]
    parameters: Mapping[str, Any]
    derived: Mapping[str, Any]
    device: str
    value: float
    baseline_value: float | None = None
    difference: float | None = None
    interval: tuple[float, float] | None = None
    confidence: float | None = None
    seeds: int | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    spend: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnosis: a stable code, a sentence, the numbers behind it, and what to do."""

    code: str
    message: str
    evidence: Mapping[str, Any]
    action: str


@dataclass(frozen=True, slots=True)
class StudyResult:
    """What `run_study` returns. `failed` is True only when `stop_reason` is failures or error."""

    stop_reason: StopReason
    verdict: Literal["recommended", "no_recommendation"] | None
    recipes: Sequence[RecipeDraft]
    diagnosis: Sequence[Finding]
    device_seconds: float
    failed: bool = False
    error: str | None = None


class Observer(Protocol):
    """Told everything that happens in a study, in order, from one thread of the runner."""

    def job_decided(self, job: ResolvedJob) -> None:
        """The job with what only its runner could decide: GPUs a trial, the precision, and a horizon that it learnt."""

    def phase_started(self, phase: Phase, total: int) -> None:
        """`total` runs are planned in this phase (it may grow)."""

    def fit_measured(self, fit: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        """How phase `fit` stands after one more run of it; replaces what was said before."""

    def precision_measured(self, found: Mapping[str, Any], probe: ProbeRecord) -> None:
        """What short runs in each precision came to, and which one the job takes (`tuner.precision_phase`)."""

    def rates_tested(self, found: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        """What the learning rate range test came to, or why there was none (`tuner.range_phase`)."""

    def diagnosed(self, findings: Sequence[Finding], probe: ProbeRecord) -> None:
        """What the run has found that looks for the reason where nothing is recommended."""

    def trial_started(self, started: TrialStarted) -> None: ...

    def probe_ended(self, number: int, ended: ProbeEnded) -> None: ...

    def trial_goes_on(self, number: int) -> None:
        """A paused trial has another probe."""

    def points_reported(self, number: int, points: Sequence[Point]) -> None: ...

    def trial_noted(self, number: int, text: str) -> None:
        """The trial's probe has changed or noticed something by itself, in words."""

    def trial_ended(self, ended: TrialEnded) -> None: ...

    def confirmation_ended(self, confirmation: Confirmation) -> None: ...

    def recipes_found(self, recipes: Sequence[RecipeDraft]) -> None:
        """The standing recommendation has changed; replaces what was said before."""

    def stop_requested(self) -> StopReason | None:
        """Asked about once a second: CANCELLED to wind down and keep the recipes, None to go on.

        May raise: the study then stops at once, ends its probes, leaves the Optuna study as it is and lets the
        exception through (a lost lease, a runner told to hand its job back).
        """
