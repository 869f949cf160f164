"""A paused trial from outside: in REST, in the events, on the receipt; and its checkpoint after a death."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from service.database import Database
from service.models import Event, Job
from service.recorder import Recorder
from service.runner import JobRunner
from service.settings import Settings
from tests.service.support import PROBE, Service, add_job, ended, point, started, take
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome, ProbeEnded

PAUSED = ProbeEnded(
    Outcome.PAUSED,
    None,
    {"micro_batch": 8},
    PROBE,
    point(2, 0.5),
    "the last lines",
    {"memory_growth": 1},
    {"grad_norm": 0.3},
)


def recorder(database: Database) -> Recorder:
    claim = take(database)
    return Recorder(database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False)


def get(service: Service, path: str) -> dict[str, Any]:
    with service.client("read") as client:
        answer: dict[str, Any] = client.get(path).json()
    return answer


def test_a_paused_trial_is_shown_with_where_it_stands_and_goes_on_with_the_same_curve(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    told = recorder(any_service.database)
    told.trial_started(started(0))
    told.points_reported(0, [point(1, 0.7), point(2, 0.5)])
    told.probe_ended(0, PAUSED)

    paused = get(any_service, f"/v1/jobs/{job_id}/trials/0")
    progress = get(any_service, f"/v1/jobs/{job_id}")["progress"]
    told.trial_goes_on(0)
    running = get(any_service, f"/v1/jobs/{job_id}/trials/0")
    told.points_reported(0, [point(3, 0.4)])
    told.trial_ended(replace(ended(0, 0.4), probe=replace(PROBE, pid=12345)))
    over = get(any_service, f"/v1/jobs/{job_id}/trials/0")

    assert (paused["state"], paused["value"], paused["log_tail"]) == ("paused", 0.5, "the last lines")
    assert progress["done"] == 1
    assert running["state"] == "running"
    assert (over["state"], over["outcome"]) == ("ended", "ok")
    assert [probe["outcome"] for probe in over["probes"]] == ["paused", "ok"]
    assert [one["index"] for one in over["curve"]] == [1, 2, 3]
    spend = get(any_service, f"/v1/jobs/{job_id}")["spend"]
    assert spend["device_seconds"] == 2 * PROBE.device_seconds


def test_a_pause_that_is_told_twice_counts_once_and_says_in_its_event_where_it_is(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    told = recorder(any_service.database)
    told.trial_started(started(0))

    told.probe_ended(0, PAUSED)
    told.probe_ended(0, PAUSED)
    told.probe_ended(0, replace(PAUSED, outcome=Outcome.LOST, probe=None))

    with any_service.database.read() as session:
        events = session.scalars(sa.select(Event).where(Event.job_id == job_id, Event.type == "trial")).all()
        assert session.get_one(Job, job_id).device_seconds == PROBE.device_seconds
    assert [event.data["state"] for event in events] == ["running", "paused"]
    assert (events[-1].data["index"], events[-1].data["value"]) == (2, 0.5)


def test_what_a_paused_trial_told_of_its_health_is_kept_when_nobody_goes_on_with_it(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    told = recorder(any_service.database)
    told.trial_started(started(0))
    told.probe_ended(0, PAUSED)

    told.trial_ended(replace(ended(0, 0.5, Outcome.PRUNED), probe=None, log_tail=""))

    trial = get(any_service, f"/v1/jobs/{job_id}/trials/0")
    assert trial["health"] == {"grad_norm": 0.3}
    assert trial["warnings"] == {"memory_growth": 1}


def test_a_runner_that_starts_removes_the_checkpoints_of_jobs_that_are_over(
    sqlite_settings: Settings,
) -> None:
    database = Database(sqlite_settings.database_url)
    over, running = add_job(database, state="failed"), add_job(database, state="running")
    for name in (over, running, "of-nobody"):
        (sqlite_settings.checkpoints / name / "3" / "1").mkdir(parents=True)

    with JobRunner(sqlite_settings, threading.Event()):
        left = [entry.name for entry in sqlite_settings.checkpoints.iterdir()]

    database.close()
    assert left == [running]
