"""The recorder and the queue: what is told twice counts once, and progress clears a job of suspicion."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from service.database import Database
from service.models import Event, Job, Trial
from service.recorder import Recorder, earlier_confirmations
from service.store import queue
from service.store.queue import MAX_LOST_LEASES, Claim
from tests.service.support import PROBE, add_job, confirmation, ended, point, started, take
from tuner.jobspec import ResolvedJob
from tuner.records import Finding, Outcome, ProbeEnded, TrialEnded, Value


def recorder(database: Database, claim: Claim) -> Recorder:
    resolved = ResolvedJob.from_json(claim.job.resolved)
    return Recorder(database, claim.lease, claim.job, resolved, lambda: False)


def test_what_is_told_twice_counts_once(database: Database) -> None:
    """As when a connection breaks after a commit and before its answer: the transaction is made again."""
    job_id = add_job(database)
    told = recorder(database, take(database))

    for _ in range(2):
        told.trial_started(started(0, is_baseline=True))
        told.points_reported(0, [point(1, 0.7), point(2, 0.6)])
        told.trial_ended(ended(0, 0.5))
        told.confirmation_ended(confirmation(0, 11))

    with database.read() as session:
        job = session.get_one(Job, job_id)
        trial = session.get_one(Trial, (job_id, 0))
        types = session.scalars(sa.select(Event.type).where(Event.job_id == job_id).order_by(Event.seq)).all()
    assert job.device_seconds == 2 * PROBE.device_seconds
    assert len(trial.probes) == 1
    assert types.count("report") == 2
    assert types.count("trial") == 3


RATES = {"state": "done", "reason": None, "low": 0.1, "high": 1.0, "rates": [{"lr": 0.1, "loss": None}]}


def test_short_runs_that_are_told_twice_count_once_and_made_twice_count_twice(database: Database) -> None:
    job_id = add_job(database)
    told = recorder(database, take(database))
    again = replace(PROBE, device_seconds=PROBE.device_seconds / 2)
    for probe in (PROBE, PROBE, again):  # the last after a death that the study did not hear of
        told.rates_tested({**RATES, "device_seconds": probe.device_seconds}, probe)
        told.precision_measured({"text": "precision: fp32", "among": ("fp32", "bf16"), "gain": float("nan")}, probe)
        told.diagnosed([Finding("diverges", "It diverges.", {}, "Lower the rate.")], probe)

    with database.read() as session:
        job = session.get_one(Job, job_id)
        types = session.scalars(sa.select(Event.type).where(Event.job_id == job_id)).all()
    assert job.device_seconds == 3 * (PROBE.device_seconds + again.device_seconds)
    assert types.count("log") == 4
    assert types.count("phase") == 1
    assert job.range_test == {**RATES, "device_seconds": PROBE.device_seconds}


def test_a_measurement_of_memory_that_is_told_twice_counts_once(database: Database) -> None:
    job_id = add_job(database)
    told = recorder(database, take(database))
    proof = {"micro_batch": 16, "fits": True, "peak_bytes": 9 << 20, "stage": None, "reason": None}
    first: dict[str, Any] = {
        "state": "measuring",
        "reason": None,
        "device": "test CPU",
        "fingerprint": "f" * 16,
        "precision": "fp32",
        "checkpointing": False,
        "without_checkpointing": None,
        "cap_bytes": 9 << 20,
        "samples_per_s": None,
        "micro_batch": None,
        "peak_bytes": None,
        "limit_bytes": 10 << 20,
        "left_out": [],
        "proofs": [],
    }
    second = {**first, "state": "done", "micro_batch": 16, "peak_bytes": 9 << 20, "proofs": [proof]}

    for standing in (first, first, second, second):
        told.fit_measured(standing, PROBE)

    with database.read() as session:
        job = session.get_one(Job, job_id)
        events = session.scalars(sa.select(Event).where(Event.job_id == job_id, Event.type == "phase")).all()
    assert job.fit == second
    assert job.device_seconds == 2 * PROBE.device_seconds
    assert [event.data["done"] for event in events] == [0, 1]
    assert events[-1].data["fit"]["proof"] == proof


def test_a_probe_that_ended_and_its_trial_did_not_is_kept_once(database: Database) -> None:
    job_id = add_job(database)
    told = recorder(database, take(database))
    told.trial_started(started(0))

    for _ in range(2):
        told.probe_ended(0, ProbeEnded(Outcome.OUT_OF_MEMORY, "MemoryError", {"micro_batch": 8}, PROBE))

    with database.read() as session:
        trial = session.get_one(Trial, (job_id, 0))
        assert (trial.state, trial.derived["micro_batch"]) == ("running", 8)
        assert [probe["outcome"] for probe in trial.probes] == ["out_of_memory"]
        assert session.get_one(Job, job_id).device_seconds == PROBE.device_seconds
        said = session.scalars(sa.select(Event).where(Event.job_id == job_id, Event.type == "trial")).all()[-1].data
    assert (said["state"], said["probe"], said["derived"]) == ("running", "out_of_memory", {"micro_batch": 8})


def test_a_trial_that_has_ended_is_not_lost_afterwards(database: Database) -> None:
    job_id = add_job(database)
    told = recorder(database, take(database))
    told.trial_started(started(0))
    told.trial_ended(ended(0, 0.5))

    told.trial_ended(TrialEnded(0, Outcome.LOST, "its runner stopped", Value.of(None), "", None))

    with database.read() as session:
        assert session.get_one(Trial, (job_id, 0)).outcome == "ok"


def test_device_time_of_earlier_confirmations_still_counts(database: Database) -> None:
    job_id = add_job(database)
    recorder(database, take(database)).confirmation_ended(confirmation(0, 11))

    with database.read() as session:
        (run,) = earlier_confirmations(session, job_id)

    assert run.probe == PROBE


def test_a_job_that_makes_progress_is_never_taken_for_poison(database: Database) -> None:
    job_id = add_job(database)
    for number in range(2 * MAX_LOST_LEASES):
        told = recorder(database, take(database, f"runner-{number}"))
        told.trial_started(started(number))
        told.trial_ended(ended(number))
        with database.write() as session:
            queue.expire(session, f"runner-{number}")

    with database.read() as session:
        assert session.get_one(Job, job_id).state == "running"


def test_lost_trials_are_no_progress(database: Database) -> None:
    job_id = add_job(database)
    for number in range(MAX_LOST_LEASES):
        told = recorder(database, take(database, f"runner-{number}"))
        told.trial_started(started(number))
        told.trial_ended(TrialEnded(number, Outcome.LOST, "its slot died", Value.of(None), "", None))
        with database.write() as session:
            queue.expire(session, f"runner-{number}")

    with database.write() as session:
        assert queue.claim(session, "last", 30.0) is None
        job = session.get_one(Job, job_id)
        assert job.state == "failed"
        assert "lost 5 times" in (job.error or "")
