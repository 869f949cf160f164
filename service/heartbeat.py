"""A runner's heartbeat: a thread with a connection of its own that keeps the lease and listens for a cancellation."""

from __future__ import annotations

import logging
import threading
import time

import sqlalchemy as sa

from service.database import Database
from service.errors import LeaseLostError
from service.models import Runner
from service.store import queue, runners
from service.store.queue import Lease

log = logging.getLogger("x5tune.runner")

LISTEN_S = 1.0


class Heartbeat:
    """Says every third of the lease time that the runner lives; asks every second whether its job is cancelled."""

    def __init__(self, database_url: str, runner: Runner, lease_s: float) -> None:
        self._database = Database(database_url, pool_size=1)
        self._runner = runner
        self._lease_s = lease_s
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._is_closing = False
        self._lease: Lease | None = None
        self._state = "starting"
        self._is_cancelled = False
        self._is_lost = False
        self._kept_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._wake.set()
        self._thread.join(10)
        self._database.close()

    def watch(self, lease: Lease | None, state: str) -> None:
        """From now on keep this lease (None: no job), and announce this state."""
        with self._mutex:
            self._lease = lease
            self._state = state
            self._is_cancelled = False
            self._is_lost = False
            self._kept_at = time.monotonic()
        self._wake.set()

    def is_cancelled(self) -> bool:
        """Whether the job is to wind down; raises `LeaseLostError`, also when the database was out of reach so long
        that another runner may have the job by now."""
        with self._mutex:
            lease = self._lease
            silent_s = time.monotonic() - self._kept_at
            if lease is not None and (self._is_lost or silent_s > self._lease_s):
                raise LeaseLostError(f"Job {lease.job_id} is no longer this runner's (attempt {lease.attempt}).")
            return self._is_cancelled

    def _run(self) -> None:
        beaten_at = float("-inf")
        announced: tuple[str, Lease | None] | None = None
        while not self._is_closing:
            with self._mutex:
                lease, state, is_lost = self._lease, self._state, self._is_lost
            started_at = time.monotonic()
            is_due = started_at - beaten_at >= self._lease_s / 3 or announced != (state, lease)
            try:
                if is_due:
                    self._beat(None if is_lost else lease, state)
                    beaten_at, announced = started_at, (state, lease)
                is_cancelled = False
                if lease is not None and not is_lost:
                    with self._database.read() as session:
                        is_cancelled = queue.cancel_requested(session, lease)
                self._note(lease, is_cancelled=is_cancelled, kept_at=started_at if is_due else None)
            except LeaseLostError:
                self._note(lease, is_lost=True)
            except sa.exc.SQLAlchemyError as error:
                log.warning("the database does not answer the heartbeat: %s", error)
            except Exception:  # a runner without a heartbeat would lose job after job
                log.exception("the heartbeat missed a beat")
            self._wake.wait(LISTEN_S)
            self._wake.clear()

    def _beat(self, lease: Lease | None, state: str) -> None:
        with self._database.write() as session:
            if lease is not None:
                queue.extend(session, lease, self._lease_s)
            runners.beat(session, self._runner, state=state, job_id=lease.job_id if lease else None)

    def _note(
        self, lease: Lease | None, *, is_cancelled: bool = False, is_lost: bool = False, kept_at: float | None = None
    ) -> None:
        with self._mutex:
            if self._lease != lease:
                return  # the answer is about a job that is over
            self._is_cancelled = self._is_cancelled or is_cancelled
            self._is_lost = self._is_lost or is_lost
            if kept_at is not None:
                self._kept_at = kept_at
