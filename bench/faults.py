"""Kill whatever there is while real jobs run, and check that nothing is lost, counted twice or left behind.

    python -m bench.faults [--kills 100] [--database sqlite|postgres|both] [--seed 0] [--jobs 2]

Targets, signals and pauses follow from the seed; what a kill meets does not. Prints one table a database and exits 1 on
any violation.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.faults_checks import claims, violations
from bench.faults_service import ServiceUnderFire, UnderFire, strike
from bench.postgres_server import PostgresServer, postgres_server
from service import migrate
from service.database import Database
from service.models import Confirmation, Job, Point
from service.settings import Settings

LEASE_S = 3.0
RESUME_S = 20.0
RECOVERY_S = 150.0
DRAIN_S = 900.0
PRESENT_S = 20.0

PROCESSES = ("probe", "warm parent", "slot", "raylet", "gcs", "runner", "api", "supervisor")
POSTGRES = ("connections", "server")
LOCK_S = 10.0
TERM = "TERM"
STOP = "STOP"
KILL = "KILL"


@dataclass(frozen=True)
class Blow:
    """One planned strike: what, how, how long after the last one, and whether to let the service recover first."""

    target: str
    how: str
    pause_s: float
    waits: bool


@dataclass
class Struck:
    """A strike that happened: the jobs that were running, and how long it took until there was progress again."""

    blow: Blow
    jobs: list[str] = field(default_factory=list)
    recovery_s: float | None = None
    problems: list[str] = field(default_factory=list)


def plan(kills: int, seed: int, *, has_server: bool) -> list[Blow]:
    """The strikes of a run: every kind of target in turn, in random order; pure."""
    rng = random.Random(seed)
    kinds = [*PROCESSES, "everything", *(POSTGRES if has_server else ())]
    blows: list[Blow] = []
    hasty = 0
    while len(blows) < kills:
        for target in rng.sample(kinds, len(kinds)):
            ways = [KILL] if target in (*POSTGRES, "everything") else [KILL] * 5 + [TERM, STOP]
            how = rng.choice(ways)
            waits = hasty >= 2 or rng.random() < 0.7
            hasty = 0 if waits else hasty + 1
            blows.append(Blow(target, how, rng.uniform(0.0, 4.0), waits))
    return blows[:kills]


class Fire:
    """One run against one database."""

    def __init__(
        self, service: UnderFire, database: Database, server: PostgresServer | None, jobs: int, seed: int
    ) -> None:
        self._service = service
        self._database = database
        self._server = server
        self._rng = random.Random(seed + 1)
        self._jobs = jobs
        self._keys = 0
        self.submitted: list[str] = []
        self.struck: list[Struck] = []
        self.general: list[str] = []
        self._begun = 0.0

    def run(self, blows: Sequence[Blow], *, resume_s: float = RESUME_S) -> None:
        with self._service.running():
            for number, blow in enumerate(blows, start=1):
                self._top_up()
                if blow.waits:
                    self._recover()
                self._wait(blow.pause_s)
                self._strike(number, blow)
            self._recover()
            self._drain()
            self._check_running()
            status = self._service.stop()
            self._check_stopped(status)
            self._check_jobs()
            self._check_resumes(resume_s)

    def _top_up(self) -> None:
        """Keep a few jobs waiting or running."""
        while len(self._unfinished()) < self._jobs:
            self._keys += 1
            self.submitted.append(self._service.submit(spec(self._rng), f"fault-{self._keys}"))

    def _unfinished(self) -> list[str]:
        return self._read(sa.select(Job.id).where(Job.state.in_(["queued", "running"])))

    def _running(self) -> list[str]:
        return self._read(sa.select(Job.id).where(Job.state == "running"))

    def _read(self, query: sa.Select[Any]) -> list[Any]:
        """The rows of one column; patient with a server that is just starting."""
        deadline = time.monotonic() + 60
        while True:
            try:
                with self._database.read() as session:
                    return list(session.scalars(query))
            except sa.exc.DBAPIError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _progress(self) -> int:
        points, runs = (self._read(sa.select(sa.func.count()).select_from(model))[0] for model in (Point, Confirmation))
        return int(points + runs)

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._service.keep_up()
            time.sleep(0.05)

    def _strike(self, number: int, blow: Blow) -> None:
        struck = Struck(blow)
        victims = self._victims(blow)
        struck.jobs = self._running()
        begun = time.monotonic()
        if blow.target == "connections" and self._server:
            self._server.cut_connections()
        elif blow.target == "server" and self._server:
            self._server.restart(self._rng.uniform(0.0, 3.0))
        elif blow.target == "lock" and self._server:
            self._server.lock_table("x5_jobs", LOCK_S)
        elif not victims:
            say(f"{number:4} {blow.target}: not there")
            return
        elif blow.how == STOP:
            self._freeze(victims[0])
        else:
            for each in victims:
                strike(each, signal.SIGTERM if blow.how == TERM else signal.SIGKILL)
            while blow.target == "everything" and (born := self._service.processes()):  # meanwhile
                for each in born:
                    strike(each, signal.SIGKILL)
        self.struck.append(struck)
        say(f"{number:4} {blow.how} {blow.target}, job {[job[-4:] for job in struck.jobs]}")
        self._begun = begun

    def _victims(self, blow: Blow) -> list[Any]:
        """Whom to strike: one of a kind, or all; waits a moment for one to be there."""
        if blow.target in (*POSTGRES, "lock"):
            return []
        if blow.target == "everything":
            return self._service.processes()
        deadline = time.monotonic() + PRESENT_S
        while time.monotonic() < deadline:
            found = self._service.find(blow.target)
            if found:
                return [self._rng.choice(sorted(found, key=lambda each: each.pid))]
            self._top_up()
            self._service.keep_up()
            time.sleep(0.02)
        return []

    def _freeze(self, victim: Any) -> None:
        """Longer than the lease, then on."""
        if strike(victim, signal.SIGSTOP):
            time.sleep(LEASE_S + self._rng.uniform(0.5, 3.0))
            strike(victim, signal.SIGCONT)

    def _recover(self) -> None:
        """Wait until a job makes progress again and the API answers."""
        if not self.struck or self.struck[-1].recovery_s is not None:
            return
        struck = self.struck[-1]
        before: int | None = None
        while struck.recovery_s is None:
            self._service.keep_up()
            self._top_up()
            parts = ("runner", "api", "raylet", "gcs")
            is_whole = all(len(self._service.find(kind)) >= self._service.count for kind in parts)
            if is_whole and before is None:
                before = self._progress()
            if not is_whole:
                before = None
            elif before is not None and self._progress() > before and self._service.is_ready():
                struck.recovery_s = time.monotonic() - self._begun
            if struck.recovery_s is None and time.monotonic() - self._begun > RECOVERY_S:
                struck.recovery_s = time.monotonic() - self._begun
                struck.problems.append(f"no progress within {RECOVERY_S:g} s: {self._service.tail()[-1500:]}")
            time.sleep(0.05)

    def _drain(self) -> None:
        say("waiting for the jobs to end")
        deadline = time.monotonic() + DRAIN_S
        while self._unfinished() and time.monotonic() < deadline:
            self._service.keep_up()
            time.sleep(0.5)

    def _check_running(self) -> None:
        """With everything idle: of each service one, one folder of a runner, a Ray session of bounded size."""
        count = self._service.count
        wanted = {"runner": count, "api": count, "raylet": count, "gcs": count, "probe": 0, "slot": 0}
        deadline = time.monotonic() + 60
        while True:
            found = {
                kind: len(self._service.find(kind)) for kind in ("runner", "api", "raylet", "gcs", "probe", "slot")
            }
            folders = self._service.folders()
            if (found == wanted and len(folders) == count) or time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if found != wanted:
            self.general.append(f"an idle service has {found}")
        if len(folders) != count:
            self.general.append(f"temporary folders: {folders}")
        sessions = [path for folder in folders for path in folder.glob("session_*") if not path.is_symlink()]
        if len(sessions) != count:
            self.general.append(f"Ray sessions: {sessions}")
        size = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
        say(f"the runner's folder holds {size / 2**20:.1f} MiB")

    def _check_stopped(self, status: int | None) -> None:
        if status != 0:
            self.general.append(f"stopping the service ended with {status}")
        deadline = time.monotonic() + 30
        while (left := self._service.survivors()) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.general += [f"process left behind: {each}" for each in left]
        self.general += [f"left in the temporary folder: {each}" for each in self._service.folders()]

    def _check_jobs(self) -> None:
        stored = self._read(sa.select(Job.id))
        if sorted(stored) != sorted(self.submitted):
            self.general.append(f"{len(self.submitted)} jobs were submitted, {len(stored)} are stored")
        for job_id, wrong in violations(self._database).items():
            hits = [struck for struck in self.struck if job_id in struck.jobs]
            lines = [f"job {job_id}: {each}" for each in wrong]
            (hits[-1].problems if hits else self.general).extend(lines)

    def _check_resumes(self, resume_s: float) -> None:
        """Nobody waits longer than the lease and `resume_s` after a runner's start."""
        starts = sorted(self._service.runners.values())
        with self._database.read() as session:
            for job_id, before, claimed in claims(session):
                since = [start for start in starts if before.timestamp() < start <= claimed.timestamp()]
                if since and claimed.timestamp() - since[-1] > LEASE_S + resume_s:
                    waited = claimed.timestamp() - since[-1]
                    self.general.append(f"job {job_id} waited {waited:.1f} s for its {len(since)}. runner")

    @property
    def problems(self) -> list[str]:
        return [*self.general, *(each for struck in self.struck for each in struck.problems)]


def spec(rng: random.Random) -> dict[str, Any]:
    """A job of a few seconds; now and then one that really trains."""
    common = {"limits": {"max_failures": 50}, "seed": rng.randrange(1000)}
    if rng.random() < 0.15:
        return {
            **common,
            "workload": "digits-cnn",
            "search": {"lr": {"low": 1e-4, "high": 1e-2, "log": True}},
            "fidelity": {"axis": "samples", "max": 1000, "reports": 5},
            "budget": {"trials": rng.randint(3, 4)},
            "confirm": {"top": 1, "seeds": 2},
        }
    return {
        **common,
        "workload": "quadratic",
        "search": {
            "lr": {"low": 1e-4, "high": 1.5e-2, "log": True},
            "sleep_seconds": rng.choice([0.015, 0.03, 0.05]),
        },
        "budget": {"trials": rng.randint(4, 8)},
        "confirm": {"top": rng.randint(1, 2), "seeds": 2},
    }


def table(struck: Sequence[Struck], general: Sequence[str]) -> str:
    """One row a target and signal."""
    lines = [f"{'target':12} {'how':5} {'kills':>5} {'jobs':>5} {'median s':>9} {'max s':>7} {'violations':>10}"]
    for key in sorted({(each.blow.target, each.blow.how) for each in struck}):
        rows = [each for each in struck if (each.blow.target, each.blow.how) == key]
        waits = [each.recovery_s for each in rows if each.recovery_s is not None]
        seconds = f"{statistics.median(waits):9.1f} {max(waits):7.1f}" if waits else f"{'-':>9} {'-':>7}"
        jobs = len({job for each in rows for job in each.jobs})
        wrong = sum(len(each.problems) for each in rows)
        lines.append(f"{key[0]:12} {key[1]:5} {len(rows):5} {jobs:5} {seconds} {wrong:10}")
    disturbed = len({job for each in struck for job in each.jobs})
    wrong = len(general) + sum(len(each.problems) for each in struck)
    lines.append(f"{'all':18} {len(struck):5} {disturbed:5} {'':17} {wrong:10}")
    return "\n".join(lines)


def attack(
    database: str,
    blows: Sequence[Blow],
    *,
    seed: int,
    jobs: int = 2,
    resume_s: float = RESUME_S,
    lease_s: float = LEASE_S,
) -> tuple[Fire, ServiceUnderFire]:
    """One run against one database, in folders that are removed afterwards."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="x5f", dir=short_folder())))
        server = stack.enter_context(postgres_server()) if database == "postgres" else None
        url = server.url if server else f"sqlite:///{folder / 'x5tune.db'}"
        migrate.upgrade(Settings(folder / "home", url))
        service = ServiceUnderFire(folder, url, free_port(), lease_s)
        stack.callback(keep_log, service)
        ours = stack.enter_context(contextlib.closing(Database(url)))
        fire = Fire(service, ours, server, jobs, seed)
        fire.run(blows, resume_s=resume_s)
        return fire, service


def keep_log(service: ServiceUnderFire, suffix: str = "") -> None:
    """Leave the service's log where X5TUNE_FAULTS_LOG says."""
    target = os.environ.get("X5TUNE_FAULTS_LOG")
    if target and service.log.exists():
        Path(target + suffix).write_bytes(service.log.read_bytes())


def short_folder() -> str:
    """Where socket paths stay short."""
    given = tempfile.gettempdir()
    return given if len(given) < 20 else "/tmp"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def databases(choice: str) -> Iterator[str]:
    yield from ("sqlite", "postgres") if choice == "both" else (choice,)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults", description="Kill whatever there is.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--database", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="jobs that wait or run at any time")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without taking the service down
    is_clean = True
    for database in databases(arguments.database):
        blows = plan(arguments.kills, arguments.seed, has_server=database == "postgres")
        fire, service = attack(database, blows, seed=arguments.seed, jobs=arguments.jobs)
        print(
            f"\n{database}, seed {arguments.seed}: {len(fire.submitted)} jobs, {service.starts} starts of the service"
        )
        print(table(fire.struck, fire.general))
        for problem in fire.problems:
            print(f"  {problem}")
        is_clean = is_clean and not fire.problems
    return 0 if is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
