"""Our tables. Optuna's live in the same database, so every name of ours starts with `x5_`.

There are no relationships to load lazily: what belongs together is fetched by `service.store`. A metric that JSON
cannot hold is a pair of columns, `value` (NULL unless finite) and `value_kind`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from service.database import CleanJson, CleanText, Timestamp, now
from service.ids import new_id

Id = sa.String(36)
Word = sa.String(32)


class Base(DeclarativeBase):
    """Constraint names are fixed, so that migrations can name them on every database."""

    metadata = sa.MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


def _where(name: str, column: str, *, condition: str) -> sa.Index:
    """An index of few of the rows."""
    return sa.Index(name, column, sqlite_where=sa.text(condition), postgresql_where=sa.text(condition))


def _job_key() -> Mapped[str]:
    return mapped_column(Id, sa.ForeignKey("x5_jobs.id", ondelete="CASCADE"), primary_key=True)


class Job(Base):
    """A job, its place in the queue and its lease. `last_event` numbers its events without gaps.

    `webhook` is whom to tell of its end; NULL once that is under way.
    """

    __tablename__ = "x5_jobs"
    __table_args__ = (
        sa.Index("ix_x5_jobs_queue", "state", "priority", "id"),
        sa.Index("ix_x5_jobs_token", "token_id", "state"),
        _where("ix_x5_jobs_webhook", "state", condition="webhook IS NOT NULL"),  # asked every second, of all jobs
    )

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(CleanText)
    workload: Mapped[str] = mapped_column(CleanText)
    state: Mapped[str] = mapped_column(Word, default="queued")
    phase: Mapped[str | None] = mapped_column(Word)
    stop_reason: Mapped[str | None] = mapped_column(Word)
    verdict: Mapped[str | None] = mapped_column(Word)
    cancel_requested: Mapped[bool] = mapped_column(default=False)
    spec: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    resolved: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    estimate: Mapped[dict[str, Any] | None] = mapped_column(CleanJson)
    warnings: Mapped[list[dict[str, Any]]] = mapped_column(CleanJson, default=list)
    diagnosis: Mapped[list[dict[str, Any]]] = mapped_column(CleanJson, default=list)
    error: Mapped[str | None] = mapped_column(CleanText)
    priority: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    total: Mapped[int | None] = mapped_column(sa.BigInteger)
    baseline_trial: Mapped[int | None] = mapped_column(sa.BigInteger)
    best_trial: Mapped[int | None] = mapped_column(sa.BigInteger)
    best_value: Mapped[float | None]
    device_seconds: Mapped[float] = mapped_column(default=0.0)
    energy_j: Mapped[float] = mapped_column(default=0.0)
    measured_runs: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    unmeasured_runs: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    energy_reason: Mapped[str | None] = mapped_column(Word)
    is_simulated: Mapped[bool] = mapped_column(default=False)
    fit: Mapped[dict[str, Any] | None] = mapped_column(CleanJson)
    range_test: Mapped[dict[str, Any] | None] = mapped_column(CleanJson)
    learnt_from: Mapped[list[dict[str, Any]] | None] = mapped_column(CleanJson)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())
    started_at: Mapped[datetime | None] = mapped_column(Timestamp)
    ended_at: Mapped[datetime | None] = mapped_column(Timestamp)
    parent_id: Mapped[str | None] = mapped_column(Id)
    schedule_id: Mapped[str | None] = mapped_column(Id, index=True)
    idempotency_key: Mapped[str | None] = mapped_column(sa.String(255), unique=True)
    webhook: Mapped[str | None] = mapped_column(CleanText)
    token_id: Mapped[str | None] = mapped_column(Id)
    attempt: Mapped[int] = mapped_column(default=0)
    lost_leases: Mapped[int] = mapped_column(default=0)
    lease_owner: Mapped[str | None] = mapped_column(Id)
    lease_expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    last_event: Mapped[int] = mapped_column(sa.BigInteger, default=0)


class Trial(Base):
    """One configuration of a job; `number` is the Optuna trial's."""

    __tablename__ = "x5_trials"

    job_id: Mapped[str] = _job_key()
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    is_baseline: Mapped[bool] = mapped_column(default=False)
    retry_of: Mapped[int | None] = mapped_column(sa.BigInteger)
    state: Mapped[str] = mapped_column(Word, default="running")
    outcome: Mapped[str | None] = mapped_column(Word, index=True)
    reason: Mapped[str | None] = mapped_column(CleanText)
    parameters: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    derived: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    seed: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    value: Mapped[float | None]
    value_kind: Mapped[str] = mapped_column(Word, default="missing")
    probes: Mapped[list[dict[str, Any]]] = mapped_column(CleanJson, default=list)
    memory: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    telemetry: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    health: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    warnings: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    log_tail: Mapped[str] = mapped_column(CleanText, default="")
    started_at: Mapped[datetime | None] = mapped_column(Timestamp)
    ended_at: Mapped[datetime | None] = mapped_column(Timestamp)


class Point(Base):
    """One report of a trial."""

    __tablename__ = "x5_points"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["job_id", "number"],
            ["x5_trials.job_id", "x5_trials.number"],
            ondelete="CASCADE",
            name="fk_x5_points_trial",
        ),
    )

    job_id: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    index: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    position: Mapped[float]
    step: Mapped[int] = mapped_column(sa.BigInteger)
    value: Mapped[float | None]
    value_kind: Mapped[str] = mapped_column(Word)


class Trace(Base):
    """The telemetry of one probe of a trial over time; `probe` counts a trial's probes from 0."""

    __tablename__ = "x5_traces"
    __table_args__ = (
        sa.ForeignKeyConstraint(
            ["job_id", "number"],
            ["x5_trials.job_id", "x5_trials.number"],
            ondelete="CASCADE",
            name="fk_x5_traces_trial",
        ),
    )

    job_id: Mapped[str] = mapped_column(Id, primary_key=True)
    number: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    probe: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    trace: Mapped[dict[str, Any]] = mapped_column(CleanJson)


class Confirmation(Base):
    """One confirmation run: a trial's configuration on a fresh seed."""

    __tablename__ = "x5_confirmations"

    job_id: Mapped[str] = _job_key()
    trial: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    seed: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    is_baseline: Mapped[bool]
    outcome: Mapped[str] = mapped_column(Word)
    reason: Mapped[str | None] = mapped_column(CleanText)
    value: Mapped[float | None]
    value_kind: Mapped[str] = mapped_column(Word)
    split: Mapped[str] = mapped_column(Word)
    probe: Mapped[dict[str, Any] | None] = mapped_column(CleanJson)
    log_tail: Mapped[str] = mapped_column(CleanText, default="")
    ended_at: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Recipe(Base):
    """A recommended configuration. `job_id` is no foreign key: a recipe outlives its job."""

    __tablename__ = "x5_recipes"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    job_id: Mapped[str] = mapped_column(Id, index=True)
    trial: Mapped[int] = mapped_column(sa.BigInteger)
    rank: Mapped[int]
    status: Mapped[str] = mapped_column(Word)
    workload: Mapped[str] = mapped_column(CleanText)
    device: Mapped[str] = mapped_column(CleanText)
    parameters: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    derived: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    value: Mapped[float]
    baseline_value: Mapped[float | None]
    difference: Mapped[float | None]
    interval: Mapped[list[float] | None] = mapped_column(CleanJson)
    confidence: Mapped[float | None]
    seeds: Mapped[int | None]
    memory: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    spend: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    context: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Frontier(Base):
    """The largest micro-batch that was proven to fit: for ever, like a recipe. One for each of its first six words.

    `proofs` are the runs behind it, which correct the predictions of the next job like it. A micro-batch of 0: none
    fits without checkpointing, and the next job need not try.
    """

    __tablename__ = "x5_frontiers"
    __table_args__ = (sa.UniqueConstraint("fingerprint", "device", "precision", "checkpointing", "limit_bytes"),)

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    workload: Mapped[str] = mapped_column(CleanText)
    fingerprint: Mapped[str] = mapped_column(Word)
    device: Mapped[str] = mapped_column(sa.String(255))
    precision: Mapped[str] = mapped_column(Word)
    checkpointing: Mapped[bool]
    limit_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    cap_bytes: Mapped[int] = mapped_column(sa.BigInteger)
    micro_batch: Mapped[int] = mapped_column(sa.BigInteger)
    peak_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)
    samples_per_s: Mapped[float | None]
    proofs: Mapped[list[dict[str, Any]]] = mapped_column(CleanJson, default=list)
    job_id: Mapped[str] = mapped_column(Id)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Schedule(Base):
    """A cron rule that submits a job. `next_at` is NULL unless it is active and will be due again."""

    __tablename__ = "x5_schedules"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(CleanText)
    cron: Mapped[str] = mapped_column(sa.String(255))
    timezone: Mapped[str] = mapped_column(sa.String(64))
    overlap: Mapped[str] = mapped_column(Word)
    missed: Mapped[str] = mapped_column(Word)
    spec: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    state: Mapped[str] = mapped_column(Word, default="active")
    webhook: Mapped[str | None] = mapped_column(CleanText)
    standing_recipe_id: Mapped[str | None] = mapped_column(Id)
    next_at: Mapped[datetime | None] = mapped_column(Timestamp, index=True)
    ends_at: Mapped[datetime | None] = mapped_column(Timestamp)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Night(Base):
    """What came of one due time of a schedule, or of a run by hand. The key keeps a due time from being used twice."""

    __tablename__ = "x5_nights"

    schedule_id: Mapped[str] = mapped_column(Id, sa.ForeignKey("x5_schedules.id", ondelete="CASCADE"), primary_key=True)
    due_at: Mapped[datetime] = mapped_column(Timestamp, primary_key=True)
    by_hand: Mapped[bool] = mapped_column(default=False)
    outcome: Mapped[str] = mapped_column(Word)
    reason: Mapped[str | None] = mapped_column(CleanText)
    job_id: Mapped[str | None] = mapped_column(Id, index=True)
    standing_recipe_id: Mapped[str | None] = mapped_column(Id)
    comparison: Mapped[dict[str, Any] | None] = mapped_column(CleanJson)


class Delivery(Base):
    """A message to a webhook; `next_at` is when to try, NULL once it has arrived or was given up."""

    __tablename__ = "x5_deliveries"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    url: Mapped[str] = mapped_column(CleanText)
    body: Mapped[dict[str, Any]] = mapped_column(CleanJson)
    state: Mapped[str] = mapped_column(Word, default="pending")
    attempts: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(CleanText)
    next_at: Mapped[datetime | None] = mapped_column(Timestamp, index=True, default=now())
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Event(Base):
    """Something that happened to a job; `seq` counts from 1 without gaps."""

    __tablename__ = "x5_events"

    job_id: Mapped[str] = _job_key()
    seq: Mapped[int] = mapped_column(sa.BigInteger, primary_key=True, autoincrement=False)
    type: Mapped[str] = mapped_column(Word)
    time: Mapped[datetime] = mapped_column(Timestamp, default=now())
    data: Mapped[dict[str, Any]] = mapped_column(CleanJson)


class Runner(Base):
    """A process that claims jobs, as it last said of itself."""

    __tablename__ = "x5_runners"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    host: Mapped[str] = mapped_column(CleanText)
    pid: Mapped[int] = mapped_column(sa.BigInteger)
    version: Mapped[str] = mapped_column(Word)
    state: Mapped[str] = mapped_column(Word, default="idle")
    job_id: Mapped[str | None] = mapped_column(Id)
    resources: Mapped[dict[str, Any]] = mapped_column(CleanJson, default=dict)
    started_at: Mapped[datetime] = mapped_column(Timestamp, default=now())
    last_seen: Mapped[datetime] = mapped_column(Timestamp, default=now())


class Token(Base):
    """An API token; only its SHA-256 is kept."""

    __tablename__ = "x5_tokens"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(CleanText)
    scope: Mapped[str] = mapped_column(Word)
    hash: Mapped[str] = mapped_column(sa.String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())
    expires_at: Mapped[datetime | None] = mapped_column(Timestamp)
    last_used_at: Mapped[datetime | None] = mapped_column(Timestamp)
    revoked_at: Mapped[datetime | None] = mapped_column(Timestamp)


class LoginSession(Base):
    """A browser's login: a random value of its own, which ends with the token behind it."""

    __tablename__ = "x5_sessions"

    id: Mapped[str] = mapped_column(Id, primary_key=True, default=new_id)
    token_id: Mapped[str] = mapped_column(Id, sa.ForeignKey("x5_tokens.id", ondelete="CASCADE"), index=True)
    hash: Mapped[str] = mapped_column(sa.String(64), unique=True)
    created_at: Mapped[datetime] = mapped_column(Timestamp, default=now())
    expires_at: Mapped[datetime] = mapped_column(Timestamp)
