"""`python -m service.runner`: claims jobs one after the other and drives their studies.

TERM or INT: the job in hand goes back to the queue with all that its study has learnt, and the process ends. A job
that fails is a job that failed; the runner goes on to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import sqlalchemy as sa

from service import logs
from service.allowed import require_still_within
from service.children import adopt_orphans, end_orphans, end_with_parent, kill_descendants
from service.database import Database
from service.errors import HandBack, LeaseLostError, OutsideRootsError, ServiceError
from service.heartbeat import Heartbeat
from service.ids import new_id
from service.migrate import require_current
from service.models import Runner
from service.presence import bury_dead, present
from service.recorder import Recorder, earlier_confirmations, earlier_ends
from service.settings import Settings
from service.store import frontiers, jobs, queue, runners
from service.store.queue import Claim
from tuner.errors import ClusterUnavailableError, StudyInterruptedError, TunerError
from tuner.jobspec import ResolvedJob
from tuner.records import Confirmation, EarlierEnd, Observer, StudyResult

if TYPE_CHECKING:
    from tuner.earlier_jobs import Learnt

log = logging.getLogger("x5tune.runner")

IDLE_POLL_S = 0.5
WIND_DOWN_S = 30.0


class RunStudy(Protocol):
    """`tuner.study.run_study`, with the cluster settled."""

    def __call__(
        self,
        *,
        job: ResolvedJob,
        job_id: str,
        storage_url: str,
        observer: Observer,
        confirmations: Sequence[Confirmation],
        ends: Mapping[int, EarlierEnd],
        fit: Mapping[str, Any] | None,
        rates: Mapping[str, Any] | None,
        frontiers: Sequence[Mapping[str, Any]],
        energy_j: float,
        checkpoint_folder: Path,
        learnt: Learnt | None,
        guard: Callable[[sa.Connection], None],
    ) -> StudyResult: ...


class JobRunner:
    """One runner: `run` works until `stop` is set."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self._settings = settings
        self._stop = stop
        self._database = Database(settings.database_url)
        self.runner = Runner(
            id=new_id(), host=socket.gethostname(), pid=os.getpid(), version=_version(), state="starting", resources={}
        )
        self._heartbeat = Heartbeat(settings.database_url, self.runner, settings.lease_s)
        self._is_full = False
        self._presence = present(settings.home / "runners", self.runner.id)

    def __enter__(self) -> JobRunner:
        bury_dead(self._settings.home / "runners", self._bury)
        self._presence.__enter__()
        self._sweep_checkpoints()
        self._database.transact(lambda session: runners.register(session, _copy(self.runner)))
        self._heartbeat.start()
        return self

    def _sweep_checkpoints(self) -> None:
        """Remove what jobs have left that are over: their runner may have died before it could."""
        with self._database.read() as session:
            for folder in leftovers(self._settings.checkpoints):
                job = jobs.get(session, folder.name)
                if job is None or job.state in jobs.ENDED_STATES:
                    shutil.rmtree(folder, ignore_errors=True)

    def _bury(self, runner_id: str) -> None:
        def work(session: sa.orm.Session) -> None:
            queue.expire(session, runner_id)
            runners.remove(session, runner_id)

        self._database.transact(work)

    def __exit__(self, *_: object) -> None:
        self._heartbeat.close()
        with contextlib.suppress(sa.exc.SQLAlchemyError):
            self._database.transact(lambda session: runners.remove(session, self.runner.id), patience_s=5)
        self._database.close()
        self._presence.__exit__(None, None, None)

    def announce(self, resources: dict[str, float]) -> None:
        """Say what this runner has to offer."""

        def work(session: sa.orm.Session) -> None:
            session.execute(sa.update(Runner).where(Runner.id == self.runner.id).values(resources=resources))

        self.runner.resources = resources
        self._database.transact(work)

    def run(self, run_study: RunStudy) -> None:
        self._heartbeat.watch(None, "idle")
        while not self._stop.is_set():
            try:
                claim = self._claim()
            except sa.exc.DBAPIError as error:
                log.warning("the database does not answer: %s", error)
                claim = None
            if claim is None:
                self._stop.wait(IDLE_POLL_S)
                continue
            try:
                self._work(claim, run_study)
            except LeaseLostError as error:
                log.warning("%s", error)
            except sa.exc.SQLAlchemyError:
                log.exception("job %s is dropped: the database does not answer", claim.job.id)
            finally:
                self._heartbeat.watch(None, "stopping" if self._stop.is_set() else "idle")

    def _claim(self) -> Claim | None:
        if not self._has_room():
            return None
        with self._database.read() as session:
            if not queue.has_work(session):
                return None

        def work(session: sa.orm.Session) -> Claim | None:
            claim = queue.claim(session, self.runner.id, self._settings.lease_s)
            if claim is not None:
                runners.beat(session, self.runner, state="busy", job_id=claim.job.id)
            return claim

        return self._database.transact(work, patience_s=10)

    def _has_room(self) -> bool:
        """Whether the disk has room for a job; says so to everybody while it has not, and takes none."""
        free_mib = shutil.disk_usage(self._settings.home).free >> 20
        is_full = free_mib < self._settings.min_free_mib
        if is_full != self._is_full:
            self._is_full = is_full
            log.warning("the disk %s: %d MiB free", "full, no job is taken" if is_full else "has room again", free_mib)
            self._heartbeat.watch(None, "disk_full" if is_full else "idle")
        return not is_full

    def _work(self, claim: Claim, run_study: RunStudy) -> None:
        from service.store import history  # needs what a machine without the worker lacks
        from tuner.earlier_jobs import learn, wants_history

        job, lease = claim.job, claim.lease
        log.info("job %s: attempt %d", job.id, lease.attempt)
        self._heartbeat.watch(lease, "busy")
        resolved = ResolvedJob.from_json(job.resolved)
        recorder = Recorder(self._database, lease, job, resolved, self._check)
        try:
            if resolved.code is not None:
                require_still_within(self._settings, resolved.code.folder)
            with self._database.read() as session:
                confirmations = earlier_confirmations(session, job.id)
                ends = earlier_ends(session, job.id)
                known = frontiers.known(session, job.workload) if resolved.history else []
                earlier = history.earlier(session, job, resolved) if wants_history(resolved) else None
            learnt = None if earlier is None else learn(resolved, earlier)
            if learnt is not None and job.learnt_from is None:
                recorder.learnt_from(learnt.jobs)
            result = run_study(
                job=resolved,
                job_id=job.id,
                storage_url=self._settings.database_url,
                observer=recorder,
                confirmations=confirmations,
                ends=ends,
                fit=job.fit,
                rates=job.range_test,
                frontiers=known,
                energy_j=job.energy_j,
                checkpoint_folder=self._settings.checkpoints / job.id,
                learnt=learnt,
                guard=queue.guard(lease),
            )
        except HandBack:
            self._database.transact(lambda session: queue.release(session, lease), patience_s=10)
            log.info("job %s: handed back", job.id)
        except LeaseLostError:
            raise
        except (StudyInterruptedError, sa.exc.DBAPIError) as error:
            log.warning("job %s: interrupted: %s", job.id, error)
            self._database.transact(lambda session: queue.expire(session, lease.owner), patience_s=10)
        except (TunerError, OutsideRootsError) as error:
            self._fail(recorder, job.id, str(error))
        except Exception as error:
            log.exception("job %s failed", job.id)
            self._fail(recorder, job.id, f"{type(error).__name__}: {error}")
        else:
            recorder.finish(result)
            log.info("job %s: %s", job.id, result.stop_reason.value)

    def _fail(self, recorder: Recorder, job_id: str, error: str) -> None:
        recorder.fail(error)
        shutil.rmtree(self._settings.checkpoints / job_id, ignore_errors=True)

    def _check(self) -> bool:
        """Whether the job is cancelled; raises to end the study: the lease is lost, or this runner is to stop."""
        is_cancelled = self._heartbeat.is_cancelled()
        if self._stop.is_set():
            raise HandBack("The runner was told to stop.")
        return is_cancelled


def leftovers(folder: Path) -> list[Path]:
    """The folders of jobs in there, each named by its job."""
    return [entry for entry in folder.iterdir() if entry.is_dir()] if folder.is_dir() else []


def _copy(runner: Runner) -> Runner:
    """A row for one session: `self.runner` itself stays out of them all, two threads read it."""
    return Runner(
        id=runner.id,
        host=runner.host,
        pid=runner.pid,
        version=runner.version,
        state=runner.state,
        resources=runner.resources,
    )


def _version() -> str:
    try:
        return version("x5tune")
    except PackageNotFoundError:
        return "unknown"


class StopSignals:
    """TERM and INT set `stop`; the second one, or `WIND_DOWN_S` after the first, ends the process by force."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def install(self) -> None:
        """Again after Ray has started: it brings handlers of its own."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._stop.is_set():
            leave("told to stop a second time")
        self._stop.set()
        threading.Thread(target=self._force, name="force", daemon=True).start()

    @staticmethod
    def _force() -> None:
        time.sleep(WIND_DOWN_S)
        leave(f"not stopped within {WIND_DOWN_S:g} s")


def leave(reason: str) -> None:
    """Ray is gone, or never came, and would take too long to say so: end as if killed, with all that we have started.

    The next runner knows how to take that up.
    """
    log.critical("%s: this runner ends", reason.splitlines()[0])
    kill_descendants()
    os._exit(1)


def run(settings: Settings) -> None:
    """Work with the real tuner until told to stop."""
    from functools import partial

    from tuner.cluster import ClusterGone, ray_cluster
    from tuner.study import run_study

    stop = threading.Event()
    signals = StopSignals(stop)
    signals.install()
    adopt_orphans()
    data_folder = settings.home / "data"
    data_folder.mkdir(parents=True, exist_ok=True)
    with (
        JobRunner(settings, stop) as worker,
        ray_cluster(settings.ray_address, on_failure=leave, start_s=settings.ray_start_s) as cluster,
    ):
        signals.install()
        worker.announce({"cpus": cluster.cpus, "gpus": cluster.gpus})
        log.info("runner %s is ready: %g CPUs, %g GPUs", worker.runner.id, cluster.cpus, cluster.gpus)
        try:
            worker.run(partial(run_study, cluster=cluster, data_folder=data_folder))
        except ClusterGone as error:
            leave(str(error))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m service.runner")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input does")
    arguments = parser.parse_args()
    logs.start()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    if arguments.watch_stdin:
        end_with_parent(WIND_DOWN_S + 5)
    try:
        settings = Settings.from_environment()
        settings.prepare_home()
        require_current(settings)
    except (ServiceError, sa.exc.SQLAlchemyError) as error:
        sys.stderr.write(f"x5tune: {error}\n")
        return 2
    try:
        run(settings)
    except ModuleNotFoundError as error:
        sys.stderr.write(f"x5tune: the runner needs {error.name}: pip install 'x5tune[worker]'\n")
        return 2
    except ClusterUnavailableError as error:
        sys.stderr.write(f"x5tune: {error}\n")
        return 1
    finally:
        end_orphans(())
    return 0


if __name__ == "__main__":
    sys.exit(main())
