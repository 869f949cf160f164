"""A schedule's due times become jobs, exactly one each, by a clock that the test sets; on both databases."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace as replace_settings
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from service import scheduler
from service.database import Database
from service.errors import ProblemError
from service.ids import new_id
from service.models import Delivery, Job, Night, Schedule
from service.recorder import Recorder
from service.scheduler import Scheduler
from service.settings import Settings
from service.store import jobs, queue, schedules
from service.store.recipes import replace
from service.submission import understand
from tests.service.support import SPEC, confirmation, recipe, result, take
from tuner.jobspec import ResolvedJob

TWO = datetime(2026, 3, 5, 2, tzinfo=UTC)
DAY = timedelta(days=1)
TOKEN = new_id()


class Nightly:
    """A schedule at two every night, and a clock."""

    def __init__(self, settings: Settings, database: Database, **columns: Any) -> None:
        self.settings, self.database, self.now = settings, database, TWO - timedelta(hours=1)
        values: dict[str, Any] = {
            **{"name": "nightly", "cron": "0 2 * * *", "timezone": "UTC", "overlap": "skip", "missed": "once"},
            **{"spec": SPEC, "next_at": TWO},
        }
        with database.write() as session:
            schedule = Schedule(**{**values, **columns})
            session.add(schedule)
            session.flush()
            self.id = schedule.id
        self.scheduler = Scheduler(settings, database, lambda _: self.now)

    def at(self, moment: datetime) -> None:
        self.now = moment
        self.scheduler.tick()

    @property
    def schedule(self) -> Schedule:
        with self.database.read() as session:
            found = schedules.get(session, self.id)
        assert found is not None
        return found

    def nights(self) -> Sequence[Night]:
        """The oldest first."""
        with self.database.read() as session:
            return schedules.nights(session, self.id)[::-1]

    def jobs(self) -> Sequence[Job]:
        with self.database.read() as session:
            return session.scalars(sa.select(Job).where(Job.schedule_id == self.id).order_by(Job.id)).all()

    def work(self, *, baseline: float, better: float | None) -> None:
        """A runner comes, measures the baseline on four fresh seeds, and finds a better one or not."""
        claim = take(self.database)
        recorder = Recorder(
            self.database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False
        )
        for seed in range(4):
            recorder.confirmation_ended(confirmation(0, seed, baseline + seed / 1000))
            if better is not None:
                recorder.confirmation_ended(confirmation(1, seed, better + seed / 1000))
        if better is None:
            recorder.finish(result(verdict="no_recommendation", recipes=[]))
        else:
            recorder.finish(result(recipes=[recipe(1, value=better)]))

    def results(self) -> list[str | None]:
        return [None if night.comparison is None else night.comparison["result"] for night in self.nights()]


@pytest.fixture
def nightly(settings: Settings, database: Database) -> Nightly:
    return Nightly(settings, database)


def test_nothing_is_submitted_before_the_time(nightly: Nightly) -> None:
    nightly.at(TWO - timedelta(seconds=1))
    assert nightly.jobs() == []


def test_a_due_time_is_one_job_however_often_one_looks(nightly: Nightly) -> None:
    for second in range(5):
        nightly.at(TWO + timedelta(seconds=second))
    [job] = nightly.jobs()
    assert (job.state, job.schedule_id, job.name) == ("queued", nightly.id, "quadratic")
    assert [(night.due_at, night.outcome, night.job_id) for night in nightly.nights()] == [(TWO, "submitted", job.id)]
    assert nightly.schedule.next_at == TWO + DAY


def test_many_processes_at_once_submit_one_job(nightly: Nightly) -> None:
    barrier = threading.Barrier(4)
    nightly.now = TWO + timedelta(seconds=1)

    def tick() -> None:
        database = Database(nightly.settings.database_url)
        scheduler = Scheduler(nightly.settings, database, lambda _: nightly.now)
        barrier.wait(10)
        scheduler.tick()
        database.close()

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(nightly.jobs()) == len(nightly.nights()) == 1


def test_a_due_time_that_was_missed_is_made_up_for_once(nightly: Nightly) -> None:
    nightly.at(TWO + 3 * DAY + timedelta(hours=5))
    [night] = nightly.nights()
    assert (night.due_at, night.outcome, len(nightly.jobs())) == (TWO + 3 * DAY, "submitted", 1)
    assert night.reason == "3 earlier due times had been missed"
    assert nightly.schedule.next_at == TWO + 4 * DAY


def test_a_due_time_that_was_missed_may_be_left_out(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, missed="skip")
    nightly.at(TWO + timedelta(hours=5))
    nightly.at(TWO + DAY)
    assert [night.outcome for night in nightly.nights()] == ["missed", "submitted"]


def test_while_the_run_before_is_not_over_the_next_is_skipped(nightly: Nightly) -> None:
    nightly.at(TWO)
    nightly.at(TWO + DAY)
    assert [night.outcome for night in nightly.nights()] == ["submitted", "skipped"]
    assert nightly.jobs()[0].id in (nightly.nights()[1].reason or "")
    assert len(nightly.jobs()) == 1


def test_or_it_is_queued_and_waits_for_its_turn(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, overlap="queue")
    nightly.at(TWO)
    nightly.at(TWO + DAY)
    first, second = nightly.jobs()
    assert take(database).job.id == first.id
    with database.read() as session:
        assert not queue.has_work(session)
    with database.write() as session:
        assert queue.claim(session, "runner-b", 30.0) is None
    with database.write() as session:
        session.execute(sa.update(Job).where(Job.id == first.id).values(state="succeeded"))
    assert take(database, "runner-b").job.id == second.id


def test_or_it_replaces_the_one_before(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, overlap="replace")
    nightly.at(TWO)
    nightly.at(TWO + DAY)
    assert [job.state for job in nightly.jobs()] == ["cancelled", "queued"]


def test_a_schedule_ends_with_its_last_due_time(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, ends_at=TWO + timedelta(hours=2))
    nightly.at(TWO)
    assert (nightly.schedule.state, nightly.schedule.next_at, len(nightly.jobs())) == ("ended", None, 1)


def test_a_paused_schedule_submits_nothing(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, state="paused", next_at=None)
    nightly.at(TWO + DAY)
    assert nightly.jobs() == []


def test_a_specification_that_no_longer_holds_is_refused_and_told(settings: Settings, database: Database) -> None:
    spec = {"workload": {"python": "gone.py:train", "folder": "/nonexistent"}}
    nightly = Nightly(settings, database, spec=spec, webhook="https://hooks.example.org/x")
    other = Nightly(settings, database)
    nightly.at(TWO)
    other.at(TWO)
    [night] = nightly.nights()
    assert (night.outcome, "workload" in (night.reason or "")) == ("refused", True)
    assert nightly.schedule.next_at == TWO + DAY
    assert len(other.jobs()) == 1
    with database.read() as session:
        assert [each.body["type"] for each in session.scalars(sa.select(Delivery))] == ["schedule.refused"]


def test_each_night_measures_again_what_stands(nightly: Nightly) -> None:
    nightly.at(TWO)
    nightly.work(baseline=0.9, better=0.5)
    nightly.at(TWO + DAY)
    assert nightly.results() == ["first", None]
    [_, second] = nightly.jobs()
    assert second.resolved["baseline"]["lr"] == 0.1  # the standing recipe's
    assert second.resolved["confirm"] == {"top": 1, "seeds": 2, "always": True}
    assert nightly.nights()[1].standing_recipe_id == nightly.schedule.standing_recipe_id is not None


def test_nights_are_compared_with_those_before(settings: Settings, database: Database) -> None:
    nightly = Nightly(settings, database, webhook="https://hooks.example.org/x")
    found = [(0.9, 0.5), (0.5, None), (0.5, 0.4), (0.4, None), (0.7, None), (0.7, 0.6)]
    for night, (baseline, better) in enumerate(found):
        nightly.at(TWO + night * DAY)
        nightly.work(baseline=baseline, better=better)
    nightly.at(TWO + len(found) * DAY - timedelta(hours=1))
    assert nightly.results() == ["first", "same", "new_best", "same", "regression", "new_best"]
    worse = nightly.nights()[4].comparison
    assert worse is not None
    assert worse["before"] == pytest.approx(0.4015)
    assert worse["now"] == pytest.approx(0.7015)
    assert worse["p_value"] == pytest.approx(1 / 70)
    with database.read() as session:
        told = [each.body for each in session.scalars(sa.select(Delivery).order_by(Delivery.id))]
    assert [each["type"] for each in told] == ["schedule.new_best", "schedule.regression", "schedule.new_best"]
    assert told[0]["job"]["recipe"]["value"] == 0.4
    assert told[1]["schedule"]["name"] == "nightly"


def test_a_night_whose_job_was_deleted_cannot_be_compared(nightly: Nightly) -> None:
    nightly.at(TWO)
    with nightly.database.write() as session:
        jobs.delete(session, nightly.jobs()[0].id)
    nightly.at(TWO + DAY)
    assert nightly.results() == ["unknown", None]


def test_a_run_by_hand_does_not_move_the_next_due_time(nightly: Nightly) -> None:
    job_id = nightly.scheduler.run_now(nightly.id, TOKEN)
    assert [(night.by_hand, night.job_id) for night in nightly.nights()] == [(True, job_id)]
    assert nightly.schedule.next_at == TWO


def test_a_recipe_that_no_longer_fits_the_specification_is_left_out(nightly: Nightly) -> None:
    nightly.at(TWO)
    nightly.work(baseline=0.9, better=0.5)
    with nightly.database.write() as session:
        schedule = schedules.get(session, nightly.id)
        assert schedule is not None
        schedule.spec = {**SPEC, "search": {"lr": {"choices": [0.001, 0.002]}}, "baseline": {"lr": 0.001}}
    nightly.at(TWO + DAY)
    assert nightly.nights()[1].outcome == "submitted"


def test_a_database_that_fails_is_tried_again(nightly: Nightly, monkeypatch: pytest.MonkeyPatch) -> None:
    real = schedules.due
    monkeypatch.setattr(schedules, "due", lambda *_: (_ for _ in ()).throw(RuntimeError("away")))
    with pytest.raises(RuntimeError, match="away"):
        nightly.at(TWO)
    monkeypatch.setattr(schedules, "due", real)
    nightly.at(TWO)
    assert len(nightly.jobs()) == 1


def test_replaced_recipes_are_not_standing(database: Database) -> None:
    with database.write() as session:
        job = Job(name="j", workload="w", spec={}, resolved={})
        session.add(job)
        session.flush()
        replace(session, job.id, "w", [recipe(3, rank=2), recipe(1, rank=1)], {})
        found = schedules.proven_recipe(session, job.id)
        assert found is not None
        assert found.trial == 1


def test_runs_by_hand_in_one_tick_of_the_clock_are_all_made(nightly: Nightly) -> None:
    for _ in range(3):
        nightly.scheduler.run_now(nightly.id, TOKEN)
    assert len(nightly.jobs()) == len(nightly.nights()) == 3


def test_runs_by_hand_count_as_jobs_of_the_token(settings: Settings, database: Database) -> None:
    nightly = Nightly(replace_settings(settings, max_open_jobs=2), database)
    for _ in range(2):
        nightly.scheduler.run_now(nightly.id, TOKEN)
    with pytest.raises(ProblemError, match="429"):
        nightly.scheduler.run_now(nightly.id, TOKEN)
    assert len(nightly.jobs()) == len(nightly.nights()) == 2


def test_a_schedule_that_is_gone_is_not_run_by_hand(nightly: Nightly) -> None:
    with nightly.database.write() as session:
        session.execute(sa.delete(Schedule))
    with pytest.raises(ProblemError, match="404"):
        nightly.scheduler.run_now(nightly.id, TOKEN)


def test_runs_are_not_queued_without_end(
    settings: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "MAX_QUEUED", 3)
    nightly = Nightly(settings, database, overlap="queue")
    for night in range(5):
        nightly.at(TWO + night * DAY)
    assert [night.outcome for night in nightly.nights()] == ["submitted"] * 3 + ["skipped"] * 2


def test_a_change_that_comes_while_a_run_is_being_made_counts(
    nightly: Nightly, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = understand

    def meanwhile(spec: dict[str, Any]) -> Any:
        with nightly.database.write() as session:
            session.execute(sa.update(Schedule).values(spec={**SPEC, "name": "changed"}))
        return real(spec)

    monkeypatch.setattr(scheduler, "understand", meanwhile)
    nightly.at(TWO)
    nightly.at(TWO)
    assert [job.name for job in nightly.jobs()] == ["changed"]


def test_a_night_that_cannot_be_compared_does_not_keep_the_next_one(nightly: Nightly) -> None:
    nightly.at(TWO)
    nightly.work(baseline=0.9, better=0.5)
    with nightly.database.write() as session:
        session.execute(sa.update(Job).values(resolved={}))
    nightly.at(TWO + DAY)
    assert (nightly.results()[0], len(nightly.jobs())) == ("unknown", 2)


def test_a_schedule_that_breaks_the_service_fails_once_and_alone(settings: Settings, database: Database) -> None:
    broken, other = Nightly(settings, database, spec=["no specification"]), Nightly(settings, database)
    broken.at(TWO)
    broken.at(TWO)
    assert [night.outcome for night in broken.nights()] == ["refused"]
    assert len(other.jobs()) == 1
