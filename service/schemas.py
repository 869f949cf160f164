"""The shapes of what the API answers, as documented in its OpenAPI description."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer

T = TypeVar("T")
JsonObject = dict[str, Any]
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ValueKind = Literal["finite", "nan", "+inf", "-inf", "missing"]


def rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Time = Annotated[datetime, PlainSerializer(rfc3339, return_type=str)]


class Schema(BaseModel):
    """Base: read from rows; a number that JSON cannot hold is null."""

    model_config = ConfigDict(from_attributes=True, ser_json_inf_nan="null")


class Page(Schema, Generic[T]):
    """Some items, and where to go on."""

    items: list[T]
    next: str | None = Field(description="The cursor of the next page; null on the last.")


class SpecWarning(Schema):
    field: str
    message: str


class TrialValue(Schema):
    trial: int
    value: float | None
    value_kind: ValueKind


class Progress(Schema):
    """Search trials that ended (lost ones are not counted) or are paused, of those in the budget (null: no cap)."""

    done: int
    total: int | None


class Spend(Schema):
    device_seconds: float
    energy_kwh: float | None
    energy_reason: str | None = Field(description="Why there is none, or what it leaves out; null when it is whole.")
    cost: float | None
    is_simulated: bool = Field(description="A device of it was a stand-in for tests.")


class WaitingFor(Schema):
    code: Literal["no_runner", "runner_busy", "starting", "runner_lost", "disk_full", "earlier_run"]
    message: str


class StudyLink(Schema):
    """The Optuna study; `url` is null until it exists."""

    name: str
    url: str | None


class LearntFrom(Schema):
    """An earlier job, and how many of its trials lie in the space of this one. The job may be deleted by now."""

    job: str
    workload: str
    trials: int


class JobOut(Schema):
    id: str
    name: str
    state: State
    phase: Literal["fit", "search", "confirm"] | None
    stop_reason: str | None
    cancel_requested: bool
    verdict: Literal["recommended", "no_recommendation"] | None
    workload: str
    spec: JsonObject
    resolved: JsonObject
    estimate: JsonObject | None
    warnings: list[SpecWarning]
    created_at: Time
    started_at: Time | None
    ended_at: Time | None
    progress: Progress
    outcomes: dict[str, int]
    baseline: TrialValue | None
    best: TrialValue | None
    spend: Spend
    fit: JsonObject | None = Field(description="How phase fit stands or stood; null without a memory limit.")
    range_test: JsonObject | None = Field(
        description="What the learning rate range test came to, or why there was none; null until the search starts."
    )
    learnt_from: list[LearntFrom] | None = Field(
        description="The earlier jobs that the search starts from; null until it starts, and where it asks for none."
    )
    waiting_for: WaitingFor | None
    diagnosis: list[JsonObject]
    attempt: int
    priority: int
    study: StudyLink
    parent_id: str | None
    schedule_id: str | None
    error: str | None


class DryRun(Schema):
    spec: JsonObject
    resolved: JsonObject
    estimate: JsonObject | None
    warnings: list[SpecWarning]


class CurvePoint(Schema):
    index: int
    position: float
    step: int
    value: float | None
    value_kind: ValueKind


class TrialOut(Schema):
    number: int
    is_baseline: bool
    retry_of: int | None
    state: Literal["waiting", "running", "paused", "ended"]
    outcome: str | None
    reason: str | None
    parameters: JsonObject
    derived: JsonObject
    seed: int
    value: float | None
    value_kind: ValueKind
    curve: list[CurvePoint]
    probes: list[JsonObject]
    memory: JsonObject
    telemetry: JsonObject
    health: JsonObject
    warnings: JsonObject
    log_tail: str
    started_at: Time | None
    ended_at: Time | None


class TraceOut(Schema):
    """What was measured while one probe of a trial ran: `trace` has `seconds` and `values` by name, 600 at most."""

    probe: int
    trace: JsonObject


class ConfirmationOut(Schema):
    trial: int
    is_baseline: bool
    seed: int
    outcome: str
    reason: str | None
    value: float | None
    value_kind: ValueKind
    split: str
    probe: JsonObject | None
    log_tail: str
    ended_at: Time


class RecipeOut(Schema):
    id: str
    job_id: str
    trial: int
    rank: int
    status: Literal["proven", "provisional"]
    workload: str
    device: str
    parameters: JsonObject
    derived: JsonObject
    value: float
    baseline_value: float | None
    difference: float | None
    interval: list[float] | None
    confidence: float | None
    seeds: int | None
    memory: JsonObject
    spend: JsonObject
    created_at: Time


class FrontierOut(Schema):
    """The largest micro-batch that fits, 0 where none does (without `checkpointing`; there is another with it then).

    `peak_bytes` is null there, and where a later run has shown that less fits.
    """

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
    proofs: list[JsonObject]
    created_at: Time


class RunnerOut(Schema):
    id: str
    host: str
    pid: int
    version: str
    last_seen: Time
    started_at: Time
    state: Literal["starting", "idle", "busy", "stopping", "disk_full", "lost"]
    job_id: str | None
    resources: JsonObject


class NightOut(Schema):
    """What came of one due time (or of one run by hand). `comparison` is null until its job has ended."""

    due_at: Time
    by_hand: bool
    outcome: Literal["submitted", "skipped", "missed", "refused"]
    reason: str | None
    job_id: str | None
    standing_recipe_id: str | None = Field(description="What was measured again, and had to be beaten.")
    comparison: JsonObject | None


class ScheduleOut(Schema):
    id: str
    name: str
    cron: str
    cron_words: str
    timezone: str
    overlap: Literal["skip", "queue", "replace"]
    missed: Literal["once", "skip"]
    state: Literal["active", "paused", "ended"]
    spec: JsonObject
    webhook: str | None
    next_at: Time | None
    ends_at: Time | None
    created_at: Time
    standing_recipe_id: str | None = Field(description="The best proven recipe so far.")
    nights: list[NightOut]


class TokenOut(Schema):
    id: str
    name: str
    scope: Literal["read", "submit", "admin"]
    created_at: Time
    expires_at: Time | None
    last_used_at: Time | None


class NewToken(TokenOut):
    token: str = Field(description="The secret: shown once, never stored.")


class EventOut(Schema):
    id: int
    type: Literal["state", "phase", "trial", "report", "recipe", "log", "end"]
    time: Time
    job_id: str
    data: JsonObject


class ProblemField(Schema):
    field: str
    value: Any
    message: str


class Problem(Schema):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    errors: list[ProblemField]
