"""Connections that are cut under a study: it goes on as soon as the database answers."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from bench.faults_checks import violations
from service.database import Database, now
from service.heartbeat import Heartbeat
from service.models import Job, Runner
from service.settings import Settings
from service.store import queue
from tests.faults.attempts import SPEC, Attempt
from tests.service.support import add_job, take, wait_for
from tuner.errors import StudyInterruptedError
from tuner.search import open_storage

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"


def cut_every(statements: int, attempt: Attempt) -> None:
    """Cut all connections before every so manieth statement of the attempt, in our tables or in the study's."""
    admin = sa.create_engine(attempt.database.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    done = 0

    def count(*_: object) -> None:
        nonlocal done
        done += 1
        if done % statements == 0:
            with admin.connect() as connection:
                connection.exec_driver_sql(f"{CUT} AND pid <> pg_backend_pid()").all()

    for engine in (attempt.database.engine, attempt.storage.engine):
        sa.event.listen(engine, "before_cursor_execute", count)


@pytest.mark.postgres
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_study_whose_connections_are_cut_again_and_again_ends_with_exact_totals(postgres_settings: Settings) -> None:
    database = Database(postgres_settings.database_url)
    for statements in (307, 211, 149):
        add_job(database, spec=SPEC)
        attempt = Attempt(postgres_settings.database_url, "runner")
        cut_every(statements, attempt)
        attempt.play()
        attempt.close()

    assert violations(database) == {}
    database.close()


def test_a_study_gives_up_when_its_database_stays_away(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(sqlite_settings.database_url)
    add_job(database, spec=SPEC)
    attempt = Attempt(sqlite_settings.database_url, "runner")
    attempt.begin()
    monkeypatch.setattr("tuner.search.PATIENCE_S", 0.2)

    def broken(_: object) -> None:
        raise sa.exc.OperationalError("COMMIT", {}, OSError("gone"))

    sa.event.listen(attempt.storage.engine, "commit", broken)
    with pytest.raises(StudyInterruptedError, match="does not answer"):
        attempt.search.ask()
    attempt.close()
    database.close()


def test_a_heartbeat_survives_an_error_that_nobody_foresaw(
    sqlite_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(sqlite_settings.database_url)
    job_id = add_job(database)
    claim = take(database, "runner", lease_s=30)
    extend = queue.extend
    errors = [MemoryError("no memory for a moment")]

    def fails_once(*args: object) -> None:
        if errors:
            raise errors.pop()
        extend(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(queue, "extend", fails_once)
    with database.write() as session:
        session.execute(sa.update(Job).values(lease_expires_at=now(-5)))
    heartbeat = Heartbeat(
        sqlite_settings.database_url, Runner(id="runner", host="h", pid=1, version="0", state="busy", resources={}), 30
    )
    heartbeat.watch(claim.lease, "busy")
    heartbeat.start()

    def is_kept() -> bool:
        with database.read() as session:
            return bool(session.scalar(sa.select(Job.lease_expires_at > now()).where(Job.id == job_id)))

    wait_for(is_kept)
    heartbeat.close()
    database.close()


@pytest.mark.postgres
def test_a_client_that_was_cut_off_in_a_transaction_does_not_keep_its_locks(postgres_settings: Settings) -> None:
    url = f"{postgres_settings.database_url}&options=-c%20work_mem%3D5MB"
    database = Database(url)
    storage = open_storage(url)
    for engine in (database.engine, storage.engine):
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one() == "1min"
            assert connection.exec_driver_sql("SHOW work_mem").scalar_one() == "5MB"
        engine.dispose()
