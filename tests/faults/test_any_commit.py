"""A runner may die just before or just after any of its commits, in our tables or in the study's."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import sqlalchemy as sa

from bench.faults_checks import violations
from service.database import Database
from service.models import Job, Point, Trial
from service.settings import Settings
from tests.faults.attempts import MEASURED, PAUSING, SPEC, Attempt, Commits, Killed, bury
from tests.service.support import add_job
from tuner.spec import resolve


def killed_at(settings: Settings, owner: str, commit: int, *, after: bool, checkpoints: Path | None = None) -> bool:
    """Whether the attempt got as far as that commit, which it does not survive."""
    commits = Commits(commit, after)
    with contextlib.suppress(Killed):
        attempt = Attempt(settings.database_url, owner, commits, checkpoints)
        try:
            attempt.play()
        finally:
            attempt.close()
        return False
    return True


def taken_up(settings: Settings, checkpoints: Path | None = None) -> None:
    """Another runner goes on to the end with what the dead one has left."""
    last = Attempt(settings.database_url, "last", checkpoints=checkpoints)
    last.play()
    last.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first", range(1, 8))
def test_a_death_at_any_commit_loses_nothing_and_counts_nothing_twice(
    sqlite_settings: Settings, first: int, after: bool
) -> None:
    database = Database(sqlite_settings.database_url)
    for commit in range(first, 200, 7 * 5 + 2):
        add_job(database, spec=SPEC)
        if killed_at(sqlite_settings, "first", commit, after=after):
            bury(database, "first")
            taken_up(sqlite_settings)
    assert violations(database) == {}
    database.close()


@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_commit_of_a_search_with_pauses_loses_nothing_either(
    sqlite_settings: Settings, tmp_path: Path, after: bool
) -> None:
    database, checkpoints = Database(sqlite_settings.database_url), tmp_path / "checkpoints"
    went_on = 0
    for commit in range(29 + 19 * after, 250, 53):
        job_id = add_job(database, spec=PAUSING)
        if killed_at(sqlite_settings, "first", commit, after=after, checkpoints=checkpoints):
            bury(database, "first")
            taken_up(sqlite_settings, checkpoints)
        with database.read() as session:
            trials = session.scalars(sa.select(Trial).where(Trial.job_id == job_id)).all()
            went_on += any(len(trial.probes) > 1 for trial in trials)
    assert violations(database) == {}
    assert went_on
    assert not [entry for job in checkpoints.iterdir() for entry in job.iterdir()]
    database.close()


@pytest.mark.parametrize("after", [False, True])
def test_a_death_while_precisions_and_rates_are_measured_repeats_that_at_most_and_charges_what_was_run(
    sqlite_settings: Settings, after: bool
) -> None:
    database = Database(sqlite_settings.database_url)
    for commit in (9, 10, 19, 20):  # what was found is told, and remembered
        add_job(database, spec=MEASURED)
        assert killed_at(sqlite_settings, "first", commit, after=after)
        bury(database, "first")
        taken_up(sqlite_settings)

    assert violations(database) == {}
    with database.read() as session:
        jobs = session.scalars(sa.select(Job)).all()
    assert {job.state for job in jobs} == {"succeeded"}
    assert {job.resolved["precision"] for job in jobs} == {"fp32"}
    assert all(job.range_test is not None and job.range_test["device_seconds"] > 0 for job in jobs)
    database.close()


def test_rates_that_were_told_before_a_death_are_not_measured_again(sqlite_settings: Settings) -> None:
    database = Database(sqlite_settings.database_url)
    job_id = add_job(database, spec=MEASURED)
    assert killed_at(sqlite_settings, "first", 19, after=True)
    with database.read() as session:
        told = session.get_one(Job, job_id).range_test
    assert told is not None
    bury(database, "first")

    last = Attempt(sqlite_settings.database_url, "last")
    last.begin()

    assert last.search.rates == told
    last.close()
    database.close()


@pytest.mark.parametrize("commit", [5, 17, 40])
def test_deaths_in_a_row_lose_nothing_either(settings: Settings, database: Database, commit: int) -> None:
    add_job(database, spec=SPEC)
    for life in range(3):
        assert killed_at(settings, f"runner-{life}", commit + life, after=bool(life % 2))
        bury(database, f"runner-{life}")
    taken_up(settings)

    assert violations(database) == {}
    with database.read() as session:
        assert session.scalar(sa.select(Job.attempt)) == 4


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("third", range(3))
def test_a_death_while_the_first_run_shows_how_long_a_full_run_is(
    sqlite_settings: Settings, third: int, after: bool
) -> None:
    database = Database(sqlite_settings.database_url)
    resolved = resolve(SPEC).job.to_json()
    resolved["fidelity"] = {**resolved["fidelity"], "max": None}
    for commit in range(1 + third, 32, 3):
        add_job(database, spec=SPEC, resolved=resolved)
        if killed_at(sqlite_settings, "first", commit, after=after):
            bury(database, "first")
            taken_up(sqlite_settings)

    assert violations(database) == {}
    with database.read() as session:
        jobs = session.scalars(sa.select(Job)).all()
        assert {job.state for job in jobs} == {"succeeded"}
        assert {job.resolved["fidelity"]["max"] for job in jobs} == {400.0}
        lengths = session.scalars(sa.select(sa.func.count()).select_from(Point).group_by(Point.job_id, Point.number))
        assert set(lengths) <= {4}
    database.close()
