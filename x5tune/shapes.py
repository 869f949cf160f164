"""The JSON that the service answers, typed. More keys may come with a newer service."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypedDict, TypeVar

T = TypeVar("T")

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ValueKind = Literal["finite", "nan", "+inf", "-inf", "missing"]
Scope = Literal["read", "submit", "admin"]
ExportFormat = Literal["yaml", "json", "args", "env"]
Spec = dict[str, Any]

ENDED: tuple[State, ...] = ("succeeded", "failed", "cancelled")


class Page(TypedDict, Generic[T]):
    items: list[T]
    next: str | None


class Measured(TypedDict):
    """A trial's number and the value that it reached."""

    trial: int
    value: float | None
    value_kind: ValueKind


class Progress(TypedDict):
    done: int
    total: int | None


class Spend(TypedDict):
    device_seconds: float
    energy_kwh: float | None
    energy_reason: str | None
    cost: float | None
    is_simulated: bool


class WaitingFor(TypedDict):
    code: str
    message: str


class Finding(TypedDict):
    """One diagnosis."""

    code: str
    message: str
    evidence: dict[str, Any]
    action: str


class SpecWarning(TypedDict):
    field: str
    message: str


class Estimate(TypedDict):
    trials: int | None
    confirmation_runs: int
    full_runs: float | None
    device_hours: float | None
    cost: float | None


class StudyLink(TypedDict):
    name: str
    url: str | None


class LearntFrom(TypedDict):
    """An earlier job that a search starts from."""

    job: str
    workload: str
    trials: int


class Job(TypedDict):
    id: str
    name: str
    state: State
    phase: str | None
    stop_reason: str | None
    cancel_requested: bool
    verdict: str | None
    workload: str
    spec: Spec
    resolved: dict[str, Any]
    estimate: Estimate | None
    warnings: list[SpecWarning]
    created_at: str
    started_at: str | None
    ended_at: str | None
    progress: Progress
    outcomes: dict[str, int]
    baseline: Measured | None
    best: Measured | None
    spend: Spend
    fit: dict[str, Any] | None
    range_test: dict[str, Any] | None
    learnt_from: list[LearntFrom] | None
    waiting_for: WaitingFor | None
    diagnosis: list[Finding]
    attempt: int
    priority: int
    study: StudyLink
    parent_id: str | None
    schedule_id: str | None
    error: str | None


class DryRun(TypedDict):
    """What validation answers."""

    spec: Spec
    resolved: dict[str, Any]
    estimate: Estimate | None
    warnings: list[SpecWarning]


class CurvePoint(TypedDict):
    index: int
    position: float
    step: int
    value: float | None
    value_kind: ValueKind


class Trial(TypedDict):
    number: int
    is_baseline: bool
    retry_of: int | None
    state: Literal["waiting", "running", "paused", "ended"]
    outcome: str | None
    reason: str | None
    parameters: dict[str, Any]
    derived: dict[str, Any]
    seed: int
    value: float | None
    value_kind: ValueKind
    curve: list[CurvePoint]
    probes: list[dict[str, Any]]
    memory: dict[str, Any]
    telemetry: dict[str, Any]
    health: dict[str, Any]
    warnings: dict[str, Any]
    log_tail: str
    started_at: str | None
    ended_at: str | None


class Night(TypedDict):
    due_at: str
    by_hand: bool
    outcome: Literal["submitted", "skipped", "missed", "refused"]
    reason: str | None
    job_id: str | None
    standing_recipe_id: str | None
    comparison: dict[str, Any] | None


class Schedule(TypedDict):
    id: str
    name: str
    cron: str
    cron_words: str
    timezone: str
    overlap: Literal["skip", "queue", "replace"]
    missed: Literal["once", "skip"]
    state: Literal["active", "paused", "ended"]
    spec: dict[str, Any]
    webhook: str | None
    next_at: str | None
    ends_at: str | None
    created_at: str
    standing_recipe_id: str | None
    nights: list[Night]


class Trace(TypedDict):
    probe: int
    trace: dict[str, Any]


class Confirmation(TypedDict):
    trial: int
    is_baseline: bool
    seed: int
    outcome: str
    reason: str | None
    value: float | None
    value_kind: ValueKind
    split: str
    probe: dict[str, Any] | None
    log_tail: str
    ended_at: str


class Frontier(TypedDict):
    """The largest micro-batch that was proven to fit."""

    id: str
    job_id: str
    workload: str
    fingerprint: str
    device: str
    precision: str
    checkpointing: bool
    limit_bytes: int
    cap_bytes: int
    micro_batch: int
    peak_bytes: int | None
    samples_per_s: float | None
    proofs: list[dict[str, Any]]
    created_at: str


class Recipe(TypedDict):
    """`difference` is the mean improvement over the baseline, positive when better; `interval` holds it."""

    id: str
    job_id: str
    trial: int
    rank: int
    status: Literal["proven", "provisional"]
    workload: str
    device: str
    parameters: dict[str, Any]
    derived: dict[str, Any]
    value: float
    baseline_value: float | None
    difference: float | None
    interval: list[float] | None
    confidence: float | None
    seeds: int | None
    memory: dict[str, Any]
    spend: dict[str, Any]
    created_at: str


class Event(TypedDict):
    """`id` counts from 1 per job without gaps."""

    id: int
    type: Literal["state", "phase", "trial", "report", "recipe", "log", "end"]
    time: str
    job_id: str
    data: dict[str, Any]


class Workload(TypedDict):
    """A built-in; `parameters` maps each name to its description."""

    name: str
    summary: str
    metric: str
    direction: Literal["minimize", "maximize"]
    metrics: list[str]
    parameters: dict[str, dict[str, Any]]
    search: dict[str, Any]
    baseline: dict[str, Any]
    fidelity: dict[str, Any]
    data: str
    train_samples: int
    model_parameters: int
    tokens_per_sample: int | None


class Runner(TypedDict):
    id: str
    host: str
    pid: int
    version: str
    last_seen: str
    started_at: str
    state: str
    job_id: str | None
    resources: dict[str, Any]


class Token(TypedDict):
    id: str
    name: str
    scope: Scope
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class NewToken(Token):
    """`token` is the secret: shown once."""

    token: str


class ProblemField(TypedDict):
    field: str
    value: Any
    message: str


class Problem(TypedDict):
    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemField]
