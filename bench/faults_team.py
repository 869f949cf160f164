"""Two APIs and two runners on one PostgreSQL, struck again and again: nothing is lost, counted twice or left behind.

    python -m bench.faults_team [--kills 100] [--seed 0] [--jobs 3] [--faketime PATH]

Struck are the server (restarted without warning), its connections (cut), the jobs' table (locked for ten seconds),
runners (killed, ended, frozen past their lease and woken) and APIs (killed). With libfaketime the clock of the second
service, API and runner, is two hours ahead. Prints one table and exits 1 on any violation.

Of libfaketime take the one in PyPI's wheel: under Debian 12's every `time.sleep` fails. It takes a lock that a fork may
catch: a runner that stays in the start of Ray with a child in `pthread_cond_init` is libfaketime's, not ours.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.faults import KILL, LEASE_S, STOP, TERM, Blow, Fire, free_port, keep_log, short_folder, table
from bench.faults_service import ServiceUnderFire
from bench.postgres_server import postgres_server
from service import migrate
from service.database import Database
from service.settings import Settings

KINDS = (
    ("server", KILL),
    ("connections", KILL),
    ("lock", KILL),
    ("runner", STOP),
    ("runner", KILL),
    ("runner", TERM),
    ("api", KILL),
)
AHEAD = "+2h"


class Team:
    """Several services on one database, asked and looked at as if they were one."""

    def __init__(self, services: Sequence[ServiceUnderFire], rng: random.Random) -> None:
        self.services, self._rng = services, rng
        self.count = len(services)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in self.services:
                stack.enter_context(each.running())
            yield

    def submit(self, spec: Mapping[str, Any], key: str) -> str:
        return self._rng.choice(self.services).submit(spec, key)

    def keep_up(self) -> None:
        for each in self.services:
            each.keep_up()

    def stop(self) -> int | None:
        statuses = [each.stop() for each in self.services]
        return next((status for status in statuses if status != 0), 0)

    def is_ready(self) -> bool:
        return all(each.is_ready() for each in self.services)

    def processes(self) -> list[psutil.Process]:
        return [one for each in self.services for one in each.processes()]

    def find(self, target: str) -> list[psutil.Process]:
        return [one for each in self.services for one in each.find(target)]

    def folders(self) -> list[Path]:
        return [one for each in self.services for one in each.folders()]

    def survivors(self) -> list[str]:
        return [one for each in self.services for one in each.survivors()]

    def tail(self) -> str:
        return "\n".join(each.tail() for each in self.services)

    @property
    def starts(self) -> int:
        return sum(each.starts for each in self.services)

    @property
    def runners(self) -> dict[tuple[int, float], float]:
        return {key: start for each in self.services for key, start in each.runners.items()}


def plan(kills: int, seed: int) -> list[Blow]:
    """Every kind in turn, in random order; pure."""
    rng = random.Random(seed)
    rounds = (rng.sample(KINDS, len(KINDS)) for _ in range(math.ceil(kills / len(KINDS))))
    blows = [Blow(target, how, rng.uniform(0.0, 4.0), rng.random() < 0.7) for kinds in rounds for target, how in kinds]
    return blows[:kills]


def attack(blows: Sequence[Blow], *, seed: int, jobs: int, faketime: Path | None) -> tuple[Fire, Team]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="x5f", dir=short_folder())))
        server = stack.enter_context(postgres_server())
        migrate.upgrade(Settings(folder / "home", server.url))
        ahead = {"LD_PRELOAD": str(faketime), "FAKETIME": AHEAD, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        services = [
            ServiceUnderFire(folder / name, server.url, free_port(), LEASE_S, ahead if name == "b" and faketime else {})
            for name in ("a", "b")
        ]
        for each in services:
            stack.callback(keep_log, each, f".{each.home.parent.name}")
        ours = stack.enter_context(contextlib.closing(Database(server.url)))
        team = Team(services, random.Random(seed + 2))
        fire = Fire(team, ours, server, jobs, seed)
        fire.run(blows, resume_s=math.inf)  # both runners may be busy with other jobs
        return fire, team


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.faults_team", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=3, help="jobs that wait or run at any time")
    parser.add_argument("--faketime", type=Path, help="libfaketimeMT.so.1: the second service is two hours ahead")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # not without taking the services down
    fire, team = attack(
        plan(arguments.kills, arguments.seed), seed=arguments.seed, jobs=arguments.jobs, faketime=arguments.faketime
    )
    print(f"\nseed {arguments.seed}: {len(fire.submitted)} jobs, {team.starts} starts of {team.count} services")
    print(table(fire.struck, fire.general))
    for problem in fire.problems:
        print(f"  {problem}")
    return 1 if fire.problems else 0


if __name__ == "__main__":
    sys.exit(main())
