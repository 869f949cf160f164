"""Dead runners are found by their locks, and their jobs wait for no lease."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.children import import_path
from service.database import Database
from service.models import Job, Runner
from service.presence import bury_dead, present
from service.runner import JobRunner
from service.settings import Settings
from tests.service.support import add_job, result, take, wait_for

HOLD = "import sys, time; from pathlib import Path; from service.presence import present\n"
HOLD += "with present(Path(sys.argv[1]), sys.argv[2]): print('here', flush=True); time.sleep(60)"


def hold(folder: Path, runner_id: str) -> subprocess.Popen[str]:
    """A process that is present as this runner."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), runner_id],
        env={**os.environ, **import_path()},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    return process


def test_a_killed_runner_is_buried_and_a_living_one_is_not(tmp_path: Path) -> None:
    with hold(tmp_path, "dead") as dead, present(tmp_path, "alive"):
        buried: list[str] = []
        bury_dead(tmp_path, buried.append)
        assert buried == []

        dead.kill()
        dead.wait()
        bury_dead(tmp_path, buried.append)
        bury_dead(tmp_path, buried.append)

        assert buried == ["dead"]
    assert list(tmp_path.iterdir()) == []


def test_the_next_runner_takes_up_a_dead_ones_job_whatever_is_left_of_its_lease(
    settings: Settings, database: Database
) -> None:
    job_id = add_job(database)
    take(database, "dead", lease_s=3600)
    (settings.home / "runners").mkdir()
    (settings.home / "runners" / "dead").touch()
    attempts: list[int] = []
    stop = threading.Event()

    def study(**_: Any) -> Any:
        with database.read() as session:
            attempts.append(session.scalars(sa.select(Job.attempt).where(Job.id == job_id)).one())
        return result()

    with JobRunner(settings, stop) as runner:
        thread = threading.Thread(target=runner.run, args=(study,))
        thread.start()
        wait_for(lambda: attempts)
        stop.set()
        thread.join(20)

    assert attempts == [2]
    assert list((settings.home / "runners").iterdir()) == []
    with database.read() as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Runner)) == 0


def test_a_job_that_was_interrupted_is_taken_up_again_and_does_not_fail(settings: Settings, database: Database) -> None:
    from tuner.errors import StudyInterruptedError

    job_id = add_job(database)
    outcomes: list[Any] = [
        StudyInterruptedError("Ray has failed"),
        sa.exc.OperationalError("", {}, OSError()),
        result(),
    ]
    stop = threading.Event()

    def study(**_: Any) -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with JobRunner(settings, stop) as runner:
        thread = threading.Thread(target=runner.run, args=(study,))
        thread.start()
        wait_for(lambda: not outcomes)
        stop.set()
        thread.join(20)

    with database.read() as session:
        job = session.get_one(Job, job_id)
    assert (job.state, job.attempt) == ("succeeded", 3)
