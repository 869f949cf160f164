"""A service on a real port, and jobs to fill it with."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from sqlalchemy.orm import Session

from service.api import create_app
from service.api_process import listen
from service.database import Database
from service.models import Job
from service.settings import Settings
from service.store import jobs, tokens
from service.store.queue import Claim, claim
from tuner.records import (
    Confirmation,
    Finding,
    Outcome,
    Point,
    ProbeRecord,
    RecipeDraft,
    StopReason,
    StudyResult,
    TrialEnded,
    TrialStarted,
    Value,
)
from tuner.spec import resolve

SPEC: dict[str, Any] = {"workload": "quadratic", "budget": {"trials": 4}, "confirm": {"top": 1, "seeds": 2}}
PROBE = ProbeRecord(seconds=1.0, device_seconds=2.0, exit_status=0, pid=1, device="cpu", peak_memory_bytes=1024)


@dataclass(frozen=True)
class Service:
    """A running API: its address, its database, and a token of each scope."""

    url: str
    app: FastAPI
    settings: Settings
    database: Database
    secrets: dict[str, str]

    def client(self, scope: str | None = "admin") -> httpx.Client:
        headers = {} if scope is None else {"Authorization": f"Bearer {self.secrets[scope]}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)


@contextlib.contextmanager
def running_service(settings: Settings) -> Iterator[Service]:
    app = create_app(settings)
    database = Database(settings.database_url)
    with database.write() as session:
        secrets = {str(scope): tokens.create(session, scope, scope)[1] for scope in tokens.SCOPES}
    sock = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield Service(f"http://127.0.0.1:{sock.getsockname()[1]}", app, settings, database, secrets)
    finally:
        app.state.is_stopping = True
        server.should_exit = True
        thread.join(15)
        sock.close()
        database.close()
        assert not thread.is_alive()


def wait_for(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def new_job(session: Session, *, spec: dict[str, Any] | None = None, **columns: Any) -> Job:
    resolution = resolve(SPEC if spec is None else spec)
    values: dict[str, Any] = {
        "name": resolution.job.name,
        "workload": resolution.job.workload,
        "spec": dict(SPEC if spec is None else spec),
        "resolved": resolution.job.to_json(),
        "total": resolution.job.budget.trials,
    }
    return jobs.create(session, Job(**{**values, **columns}))


def add_job(database: Database, **columns: Any) -> str:
    with database.write() as session:
        return new_job(session, **columns).id


def take(database: Database, owner: str = "runner-a", lease_s: float = 30.0) -> Claim:
    with database.write() as session:
        claimed = claim(session, owner, lease_s)
    assert claimed is not None
    return claimed


def started(number: int, *, is_baseline: bool = False) -> TrialStarted:
    return TrialStarted(number, is_baseline, {"lr": 0.1, "note": None}, {"micro_batch": 8}, seed=7)


def ended(number: int, value: float | None = 0.5, outcome: Outcome = Outcome.OK) -> TrialEnded:
    return TrialEnded(number, outcome, None, Value.of(value), "the last lines", PROBE, {"repeated_step": 1})


def point(index: int, value: float) -> Point:
    return Point(index, float(index), index * 10, Value.of(value))


def confirmation(trial: int, seed: int, value: float = 0.4) -> Confirmation:
    return Confirmation(trial, trial == 0, seed, Outcome.OK, None, Value.of(value), "test", PROBE)


def recipe(trial: int, rank: int = 1, value: float = 0.3) -> RecipeDraft:
    return RecipeDraft(
        trial,
        rank,
        "proven",
        {"lr": 0.1, "batch_size": 32},
        {"micro_batch": 32, "accumulation": 1},
        "cpu",
        value,
        baseline_value=0.5,
        difference=0.2,
        interval=(0.1, 0.3),
        confidence=0.95,
        seeds=2,
    )


def result(reason: StopReason = StopReason.TRIALS, **changes: Any) -> StudyResult:
    values: dict[str, Any] = {
        "stop_reason": reason,
        "verdict": "recommended",
        "recipes": [recipe(1)],
        "diagnosis": [Finding("at_the_edge", "lr is at its bound", {"lr": 0.1}, "widen it")],
        "device_seconds": 10.0,
    }
    return StudyResult(**{**values, **changes})


def read_events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The events of a stream as they come."""
    for line in lines:
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
