"""The runner: claims, records, hands back, survives a failing job and gives up a lost lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.database import Database, now
from service.errors import HandBack, LeaseLostError
from service.models import Event, Job, Runner, Trial
from service.recorder import Recorder
from service.runner import JobRunner
from service.settings import Settings
from service.store import jobs
from tests.service.support import (
    SPEC,
    add_job,
    confirmation,
    ended,
    new_job,
    point,
    recipe,
    result,
    running_service,
    started,
    take,
    wait_for,
)
from tuner.earlier_jobs import Learnt
from tuner.errors import TunerError
from tuner.jobspec import ResolvedJob
from tuner.records import Confirmation, Observer, Outcome, StudyResult
from tuner.spec import resolve

Study = Callable[..., StudyResult]


class Running:
    """A runner at work in a thread."""

    def __init__(self, settings: Settings, study: Study) -> None:
        self.stop = threading.Event()
        self._runner = JobRunner(settings, self.stop)
        self._study = study
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with self._runner as worker:
            worker.announce({"cpus": 2.0})
            worker.run(self._study)

    def __enter__(self) -> Running:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


def get(database: Database, job_id: str) -> Job:
    with database.read() as session:
        job = jobs.get(session, job_id)
    assert job is not None
    return job


def state(database: Database, job_id: str) -> str:
    return get(database, job_id).state


def short_study(*, observer: Observer, **_: Any) -> StudyResult:
    observer.trial_started(started(0, is_baseline=True))
    observer.points_reported(0, [point(1, 0.5)])
    observer.trial_ended(ended(0))
    return result()


def waiting_study(*, observer: Observer, **_: Any) -> StudyResult:
    """Runs until it is told to stop, as `run_study` does: asks about once a second (faster here)."""
    observer.trial_started(started(0, is_baseline=True))
    while True:
        reason = observer.stop_requested()
        if reason is not None:
            return result(reason)
        time.sleep(0.05)


def test_a_job_runs_from_queued_to_succeeded(settings: Settings, database: Database) -> None:
    job_id = add_job(database)
    with Running(settings, short_study):
        wait_for(lambda: state(database, job_id) == "succeeded")
    job = get(database, job_id)
    assert (job.stop_reason, job.verdict, job.lease_owner) == ("trials", "recommended", None)
    with database.read() as session:
        numbers = session.scalars(sa.select(Event.seq).order_by(Event.seq)).all()
    assert numbers == list(range(1, len(numbers) + 1))


def test_the_study_gets_the_job_its_name_and_the_database(sqlite_settings: Settings) -> None:
    database = Database(sqlite_settings.database_url)
    seen: dict[str, Any] = {}

    def study(**given: Any) -> StudyResult:
        seen.update(given)
        return result()

    job_id = add_job(database)
    with Running(sqlite_settings, study):
        wait_for(lambda: state(database, job_id) == "succeeded")
    database.close()
    assert seen["job_id"] == job_id
    assert seen["job"].workload == "quadratic"
    assert seen["storage_url"] == sqlite_settings.database_url
    assert list(seen["confirmations"]) == []


def test_a_job_learns_from_those_before_it_and_says_which(sqlite_settings: Settings) -> None:
    database = Database(sqlite_settings.database_url)
    seen: list[Learnt | None] = []

    def study(*, job: ResolvedJob, observer: Observer, learnt: Learnt | None, **_: Any) -> StudyResult:
        seen.append(learnt)
        for number in range(3):
            observer.trial_started(replace(started(number), parameters={**job.baseline, "lr": 0.01 * (number + 1)}))
            observer.points_reported(number, [point(index, 1.0 / index + number) for index in range(1, 21)])
            observer.trial_ended(ended(number))
        return result()

    spec = {"workload": "quadratic"}
    with database.write() as session:
        ids = [new_job(session, spec=one).id for one in (spec, spec, {**spec, "history": False})]
    with Running(sqlite_settings, study):
        wait_for(lambda: all(state(database, job_id) == "succeeded" for job_id in ids))
    told = [get(database, job_id).learnt_from for job_id in ids]
    database.close()
    assert told == [[], [{"job": ids[0], "workload": "quadratic", "trials": 3}], None]
    assert [learnt is not None and learnt.history is not None for learnt in seen] == [False, True, False]


def test_a_runner_is_listed_while_it_lives(settings: Settings, database: Database) -> None:
    job_id = add_job(database)

    def row() -> Runner | None:
        with database.read() as session:
            return session.scalar(sa.select(Runner))

    with Running(settings, waiting_study):
        wait_for(lambda: (found := row()) is not None and found.state == "busy" and found.job_id == job_id)
        found = row()
        assert found is not None
        assert found.resources == {"cpus": 2.0}
    assert row() is None


def test_with_a_full_disk_no_job_is_taken_and_everybody_is_told(settings: Settings, database: Database) -> None:
    job_id = add_job(database)
    full = replace(settings, min_free_mib=1 << 40)
    with Running(full, short_study), running_service(full) as service, service.client() as client:
        wait_for(lambda: client.get("/v1/runners").json()["items"][0]["state"] == "disk_full")
        waiting = client.get(f"/v1/jobs/{job_id}").json()["waiting_for"]
        assert waiting["code"] == "disk_full"
        assert "X5TUNE_MIN_FREE_MIB" in waiting["message"]
    assert state(database, job_id) == "queued"
    with Running(settings, short_study):
        wait_for(lambda: state(database, job_id) == "succeeded")


def test_a_cancellation_reaches_the_study_within_seconds(settings: Settings, database: Database) -> None:
    job_id = add_job(database)
    with Running(settings, waiting_study):
        wait_for(lambda: state(database, job_id) == "running")
        with database.write() as session:
            job = jobs.get(session, job_id, lock=True)
            assert job is not None
            jobs.request_cancel(session, job)
        begun = time.monotonic()
        wait_for(lambda: state(database, job_id) == "cancelled")
        assert time.monotonic() - begun < 4
    assert get(database, job_id).stop_reason == "cancelled"


def test_a_failing_study_fails_its_job_and_the_next_job_runs(settings: Settings, database: Database) -> None:
    calls: list[str] = []

    def study(*, job_id: str, observer: Observer, **given: Any) -> StudyResult:
        calls.append(job_id)
        if len(calls) == 1:
            (given["checkpoint_folder"] / "3" / "1").mkdir(parents=True)
            raise ZeroDivisionError("division by zero")
        return short_study(observer=observer)

    bad, good = add_job(database), add_job(database)
    with Running(settings, study):
        wait_for(lambda: state(database, good) == "succeeded")
    job = get(database, bad)
    assert (job.state, job.stop_reason) == ("failed", "error")
    assert job.error == "ZeroDivisionError: division by zero"
    assert not (settings.checkpoints / bad).exists()


def test_an_error_that_the_tuner_raises_on_purpose_is_told_in_its_words(settings: Settings, database: Database) -> None:
    def study(**_: Any) -> StudyResult:
        raise TunerError("resources.gpus = 1, but this cluster has 0 GPUs")

    job_id = add_job(database)
    with Running(settings, study):
        wait_for(lambda: state(database, job_id) == "failed")
    assert get(database, job_id).error == "resources.gpus = 1, but this cluster has 0 GPUs"


def test_a_runner_that_is_stopped_hands_its_job_back_and_another_goes_on(
    settings: Settings, database: Database
) -> None:
    job_id = add_job(database)
    with Running(settings, waiting_study) as first:
        wait_for(lambda: state(database, job_id) == "running")
        first.stop.set()
        wait_for(lambda: state(database, job_id) == "queued")

    def resumed(*, observer: Observer, **_: Any) -> StudyResult:
        observer.trial_ended(ended(0, None, Outcome.LOST))
        return result()

    with Running(settings, resumed):
        wait_for(lambda: state(database, job_id) == "succeeded")
    assert get(database, job_id).attempt == 2
    with database.read() as session:
        trial = session.get(Trial, (job_id, 0))
    assert trial is not None
    assert (trial.state, trial.outcome) == ("ended", "lost")


def test_a_runner_whose_lease_went_to_another_stops_and_writes_nothing_more(
    settings: Settings, database: Database
) -> None:
    ends: list[type[BaseException]] = []

    def study(*, observer: Observer, **given: Any) -> StudyResult:
        try:
            return waiting_study(observer=observer, **given)
        except (LeaseLostError, HandBack) as error:
            ends.append(type(error))
            raise

    job_id = add_job(database)
    with Running(settings, study):
        wait_for(lambda: get(database, job_id).baseline_trial is not None)
        with database.write() as session:
            session.execute(
                sa.update(Job).values(lease_owner="other", attempt=2, lease_expires_at=now(600), phase="confirm")
            )
        wait_for(lambda: ends)
    assert ends == [LeaseLostError]
    job = get(database, job_id)
    assert (job.state, job.lease_owner, job.attempt, job.phase) == ("running", "other", 2, "confirm")


def test_what_was_confirmed_is_handed_to_the_next_attempt(settings: Settings, database: Database) -> None:
    given: list[Sequence[Confirmation]] = []

    def study(*, observer: Observer, confirmations: Sequence[Confirmation], **rest: Any) -> StudyResult:
        given.append(confirmations)
        if len(given) == 1:
            observer.confirmation_ended(confirmation(0, seed=11))
            observer.confirmation_ended(confirmation(0, seed=11))  # told twice: stored once
            return waiting_study(observer=observer)
        return result()

    job_id = add_job(database)
    with Running(settings, study) as first:
        wait_for(lambda: given)
        time.sleep(0.3)
        first.stop.set()
    with Running(settings, study):
        wait_for(lambda: state(database, job_id) == "succeeded")
    assert [(each.trial, each.seed, each.value.number) for each in given[1]] == [(0, 11, 0.4)]


@pytest.fixture
def stale(database: Database) -> tuple[str, Recorder]:
    """A recorder whose job has been claimed by another runner meanwhile."""
    job_id = add_job(database)
    claim = take(database, "a")
    recorder = Recorder(database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False)
    recorder.trial_started(started(0))
    recorder.recipes_found([recipe(0)])
    with database.write() as session:
        session.execute(sa.update(Job).values(lease_expires_at=now(-1)))
    take(database, "b")
    return job_id, recorder


@pytest.mark.parametrize(
    "write",
    [
        lambda r: r.job_decided(ResolvedJob.from_json(resolve(SPEC).job.to_json())),
        lambda r: r.trial_started(started(1)),
        lambda r: r.points_reported(0, [point(1, 0.1)]),
        lambda r: r.trial_ended(ended(0)),
        lambda r: r.confirmation_ended(confirmation(0, 1)),
        lambda r: r.recipes_found([]),
        lambda r: r.finish(result()),
        lambda r: r.fail("error"),
    ],
    ids=["decided", "trial_started", "points", "trial_ended", "confirmation", "recipes", "finish", "fail"],
)
def test_no_write_gets_past_a_lost_lease(
    database: Database, stale: tuple[str, Recorder], write: Callable[[Recorder], None]
) -> None:
    job_id, recorder = stale

    def snapshot() -> tuple[Any, ...]:
        with database.read() as session:
            counts = [
                session.scalar(sa.select(sa.func.count()).select_from(sa.table(name)))
                for name in ("x5_trials", "x5_points", "x5_confirmations", "x5_recipes", "x5_events")
            ]
            trial = session.get(Trial, (job_id, 0))
            assert trial is not None
            return (*counts, trial.state)

    before = snapshot()
    with pytest.raises(LeaseLostError):
        write(recorder)
    assert snapshot() == before
    assert state(database, job_id) == "running"


def test_a_write_waits_for_a_busy_sqlite_database(sqlite_settings: Settings) -> None:
    database = Database(sqlite_settings.database_url)
    job_id = add_job(database)
    claim = take(database)
    recorder = Recorder(database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False)
    holding, release = threading.Event(), threading.Event()

    def hold() -> None:
        with database.write():
            holding.set()
            release.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    holding.wait(10)
    releasing = threading.Timer(0.5, release.set)
    releasing.start()
    recorder.trial_started(started(0))
    holder.join()
    releasing.join()
    with database.read() as session:
        assert session.get(Trial, (job_id, 0)) is not None
    database.close()


def test_a_folder_that_leads_out_of_the_roots_by_now_is_not_run(sqlite_settings: Settings, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "project", outside):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text("def train(config, probe): ...\n")
    spec = {
        "workload": {"python": "train.py:train", "folder": str(root / "project")},
        "search": {"lr": {"low": 1e-4, "high": 1}},
        "baseline": {"lr": 0.01},
        "objective": {"metric": "loss", "direction": "minimize"},
        "fidelity": {"axis": "steps", "max": 1},
    }
    database = Database(sqlite_settings.database_url)
    honest = add_job(database, spec=spec)
    settings = replace(sqlite_settings, roots=(root.resolve(),))

    with Running(settings, short_study):
        wait_for(lambda: state(database, honest) == "succeeded")
    (root / "project").rename(root / "before")
    (root / "project").symlink_to(outside)
    swapped = add_job(database, spec=spec)
    with Running(settings, short_study):
        wait_for(lambda: state(database, swapped) == "failed")
    assert "X5TUNE_ROOTS" in (get(database, swapped).error or "")
    database.close()
