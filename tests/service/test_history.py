"""Earlier jobs as the runner reads them from the database."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from service.database import Database
from service.models import Job, Point, Trial
from service.store import history
from tests.service.support import Service, new_job
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome


def ended_job(session: Session, trials: int = 3, **columns: Any) -> Job:
    job = new_job(session, state="succeeded", **columns)
    reports = job.resolved["fidelity"]["reports"]
    for number in range(trials):
        session.add(
            Trial(job_id=job.id, number=number, state="ended", outcome="ok", parameters={"lr": 0.1}, derived={})
        )
        session.flush()
        for index in (1, reports):
            session.add(
                Point(job_id=job.id, number=number, index=index, position=1.0, step=1, value=0.5, value_kind="finite")
            )
    session.flush()
    return job


def read(session: Session, job: Job) -> list[Any]:
    return history.earlier(session, job, ResolvedJob.from_json(job.resolved))


def test_ended_jobs_on_the_same_work_are_read_with_their_curves_the_newest_first(database: Database) -> None:
    with database.write() as session:
        old, new, running = ended_job(session), ended_job(session), new_job(session, state="running")
        found = read(session, new_job(session))
        assert [one.id for one in found] == [new.id, old.id]
        assert running.id not in [one.id for one in found]
        trial = found[0].trials[0]
        assert (trial.parameters, trial.outcome) == ({"lr": 0.1}, Outcome.OK)
        assert trial.curve[-1] == (1.0, 0.5)


def test_a_later_attempt_reads_the_jobs_that_the_first_one_chose(database: Database) -> None:
    with database.write() as session:
        first = ended_job(session)
        chosen = [{"job": first.id, "workload": "quadratic", "trials": 3}, {"job": "gone", "workload": "", "trials": 1}]
        job = new_job(session, learnt_from=chosen)
        ended_job(session)
        assert [one.id for one in read(session, job)] == [first.id]


def test_a_specification_that_cannot_be_read_is_passed_over(database: Database) -> None:
    with database.write() as session:
        ended_job(session, resolved={"fidelity": {"reports": 20}})
        good = ended_job(session)
        assert [one.id for one in read(session, new_job(session))] == [good.id]


def test_a_job_says_what_it_learnt_from(service: Service) -> None:
    told = [{"job": "0190", "workload": "quadratic", "trials": 3}]
    with service.database.write() as session:
        job_id = new_job(session, learnt_from=told).id
    with service.client() as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["learnt_from"] == told
