"""What is removed of jobs that ended long ago, and what is not; on both databases."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from service.database import Database, now
from service.housekeeping import sweep
from service.models import Delivery, Event, Job, Point, Recipe, Trace, Trial
from service.settings import Settings
from service.snapshots import ORPHAN_S
from tests.cli.support import finished_job
from tests.service.support import add_job

DAYS = 86400.0


@pytest.fixture
def jobs(settings: Settings, database: Database) -> dict[str, str]:
    """One that ended a hundred days ago, one that ended yesterday, one that waits."""
    found = {"old": finished_job(database), "new": finished_job(database)}
    for name, age in (("old", 100 * DAYS), ("new", DAYS)):
        with database.write() as session:
            session.execute(sa.update(Job).where(Job.id == found[name]).values(ended_at=now(-age)))
            session.add(Trace(job_id=found[name], number=0, probe=0, trace={"seconds": []}))
        (settings.snapshots / found[name]).mkdir(parents=True)
        (settings.snapshots / found[name] / "train.py").write_text("x")
    found["waiting"] = add_job(database)
    return found


def count(database: Database, model: Any, job_id: str, *where: Any) -> int:
    query = sa.select(sa.func.count()).select_from(model).where(model.job_id == job_id, *where)
    with database.read() as session:
        return session.scalar(query) or 0


def test_details_of_old_jobs_go_and_what_they_came_to_stays(
    settings: Settings, database: Database, jobs: dict[str, str]
) -> None:
    kept = {model: count(database, model, jobs["old"]) for model in (Trial, Point, Recipe)}
    swept = sweep(database, settings)
    assert (swept.traces, swept.logs, swept.folders, swept.events > 0) == (1, 1, 1, True)
    assert {model: count(database, model, jobs["old"]) for model in kept} == kept
    assert count(database, Trace, jobs["old"]) == count(database, Trial, jobs["old"], Trial.log_tail != "") == 0
    with database.read() as session:
        left = session.scalars(sa.select(Event.type).where(Event.job_id == jobs["old"]).order_by(Event.seq)).all()
    assert left[-1] == "end"
    assert set(left) <= {"state", "recipe", "end"}
    assert [folder.name for folder in settings.snapshots.iterdir()] == [jobs["new"]]


def test_younger_jobs_are_left_as_they_are(settings: Settings, database: Database, jobs: dict[str, str]) -> None:
    before = {name: count(database, Event, jobs[name]) for name in ("new", "waiting")}
    sweep(database, settings)
    assert {name: count(database, Event, jobs[name]) for name in before} == before
    assert count(database, Trace, jobs["new"]) == count(database, Trial, jobs["new"], Trial.log_tail != "") == 1


def test_a_second_sweep_finds_nothing(settings: Settings, database: Database, jobs: dict[str, str]) -> None:
    assert sweep(database, settings)
    assert not sweep(database, settings)
    assert jobs


def test_a_dry_run_only_counts(settings: Settings, database: Database, jobs: dict[str, str]) -> None:
    foretold = sweep(database, settings, is_dry=True)
    assert (settings.snapshots / jobs["old"]).is_dir()
    assert sweep(database, settings) == foretold


def test_how_long_is_a_setting(settings: Settings, database: Database, jobs: dict[str, str]) -> None:
    assert sweep(database, replace(settings, keep_days=0.5)).traces == 2
    assert jobs


def test_old_messages_go_once_they_have_arrived(settings: Settings, database: Database) -> None:
    with database.write() as session:
        session.add_all(Delivery(url="https://example.org", body={}, state=state) for state in ("delivered", "pending"))
        session.flush()
        session.execute(sa.update(Delivery).values(created_at=now(-100 * DAYS)))
        session.execute(sa.update(Delivery).where(Delivery.state == "delivered").values(next_at=None))
    assert sweep(database, settings).messages == 1
    with database.read() as session:
        assert session.scalars(sa.select(Delivery.state)).all() == ["pending"]


def test_copies_of_folders_whose_job_is_gone_go_unless_they_are_young(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(sqlite_settings.database_url)
    copy = sqlite_settings.snapshots / "01890000-0000-7000-8000-000000000000"
    copy.mkdir(parents=True)
    assert sweep(database, sqlite_settings).folders == 0
    later = time.time() + 2 * ORPHAN_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert sweep(database, sqlite_settings).folders == 1
    assert not copy.exists()
    database.close()
