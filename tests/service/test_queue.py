"""The queue: order, leases, fences, and what becomes of a job whose runners die."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from service.database import Database, now
from service.errors import LeaseLostError
from service.models import Event, Job
from service.store import jobs, queue
from tests.service.support import add_job, new_job, take


def get(database: Database, job_id: str) -> Job:
    with database.read() as session:
        job = jobs.get(session, job_id)
    assert job is not None
    return job


def expire(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(sa.update(Job).where(Job.id == job_id).values(lease_expires_at=now(-1)))


def test_the_highest_priority_is_claimed_first_and_the_oldest_of_those(database: Database) -> None:
    low, old, new = add_job(database), add_job(database, priority=5), add_job(database, priority=5)
    assert [take(database).job.id for _ in range(3)] == [old, new, low]


def test_nothing_to_do_is_none(database: Database) -> None:
    with database.write() as session:
        assert not queue.has_work(session)
        assert queue.claim(session, "a", 30) is None


def test_a_claimed_job_is_running_with_attempt_one(database: Database) -> None:
    job_id = add_job(database)
    claim = take(database)
    job = get(database, job_id)
    assert (job.state, job.attempt, job.lease_owner) == ("running", 1, "runner-a")
    assert job.started_at is not None
    assert claim.job.attempt == 1


def test_a_held_job_is_not_claimed_by_another_runner(database: Database) -> None:
    add_job(database)
    take(database)
    with database.write() as session:
        assert queue.claim(session, "b", 30) is None


def test_an_expired_lease_can_be_claimed_by_another_runner(database: Database) -> None:
    job_id = add_job(database)
    first = take(database, "a")
    expire(database, job_id)

    second = take(database, "b")

    assert (second.job.id, second.lease.attempt) == (job_id, 2)
    with pytest.raises(LeaseLostError), database.write() as session:
        queue.extend(session, first.lease, 30)


def test_the_same_runner_with_an_old_attempt_has_lost_its_lease(database: Database) -> None:
    job_id = add_job(database)
    first = take(database, "a")
    expire(database, job_id)
    take(database, "a")
    with pytest.raises(LeaseLostError), database.write() as session:
        queue.fence(session, first.lease, phase="search")


def test_another_runner_with_the_right_attempt_has_no_lease(database: Database) -> None:
    add_job(database)
    claim = take(database, "a")
    with pytest.raises(LeaseLostError), database.write() as session:
        queue.fence(session, replace(claim.lease, owner="b"), phase="search")


def test_writers_that_read_first_wait_for_each_other(database: Database) -> None:
    """A deferred SQLite transaction that turns into a write fails at once when another has written meanwhile."""
    job_id = add_job(database)

    def count_up(_: int) -> None:
        for _ in range(10):
            with database.write() as session:
                job = jobs.get(session, job_id, lock=True)
                assert job is not None
                job.priority += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(4)))
    assert get(database, job_id).priority == 40


def test_extending_keeps_the_job(database: Database) -> None:
    job_id = add_job(database)
    claim = take(database)
    expire(database, job_id)
    with database.write() as session:
        queue.extend(session, claim.lease, 30)
    with database.write() as session:
        assert queue.claim(session, "b", 30) is None


def test_a_released_job_is_queued_again_and_claimed_with_the_next_attempt(database: Database) -> None:
    job_id = add_job(database)
    claim = take(database)
    with database.write() as session:
        queue.release(session, claim.lease)
    assert get(database, job_id).state == "queued"
    assert take(database).lease.attempt == 2


def test_a_job_that_loses_its_runner_five_times_fails_and_says_so(database: Database) -> None:
    job_id = add_job(database)
    for _ in range(queue.MAX_LOST_LEASES):
        take(database)
        expire(database, job_id)

    with database.write() as session:
        assert queue.claim(session, "b", 30) is None

    job = get(database, job_id)
    assert (job.state, job.stop_reason) == ("failed", "error")
    assert "lost 5 times" in (job.error or "")
    with database.read() as session:
        assert session.scalars(sa.select(Event.type).order_by(Event.seq)).all()[-1] == "end"


def test_a_poison_job_does_not_block_the_one_behind_it(database: Database) -> None:
    add_job(database, state="running", lost_leases=4, lease_owner="x", attempt=5, priority=9)
    with database.write() as session:
        session.execute(sa.update(Job).values(lease_expires_at=now(-1)))
    healthy = add_job(database)
    assert take(database).job.id == healthy


def test_handing_back_does_not_count_as_losing_the_runner(database: Database) -> None:
    add_job(database)
    for _ in range(8):
        claim = take(database)
        with database.write() as session:
            queue.release(session, claim.lease)
    assert take(database).lease.attempt == 9


def test_many_runners_at_once_never_share_a_job(database: Database) -> None:
    with database.write() as session:
        wanted = {new_job(session).id for _ in range(12)}
    barrier = threading.Barrier(6)

    def work(name: str) -> list[str]:
        barrier.wait()
        found: list[str] = []
        while True:
            claim = database.transact(lambda session: queue.claim(session, name, 30))
            if claim is None:
                return found
            found.append(claim.job.id)

    with ThreadPoolExecutor(6) as pool:
        taken = [job_id for each in pool.map(work, "abcdef") for job_id in each]
    assert len(taken) == len(set(taken)) == 12
    assert set(taken) == wanted


def test_a_cancelled_queued_job_is_never_claimed(database: Database) -> None:
    job_id = add_job(database)
    with database.write() as session:
        job = jobs.get(session, job_id, lock=True)
        assert job is not None
        jobs.request_cancel(session, job)
    with database.write() as session:
        assert queue.claim(session, "a", 30) is None
    assert get(database, job_id).state == "cancelled"


def test_events_of_concurrent_writers_are_numbered_without_gaps(database: Database) -> None:
    from service.store import events

    job_id = add_job(database)

    def write(_: int) -> None:
        database.transact(lambda session: events.append(session, job_id, [("log", {}), ("log", {})]))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(20)))
    with database.read() as session:
        numbers = session.scalars(sa.select(Event.seq).order_by(Event.seq)).all()
    assert numbers == list(range(1, 42))
