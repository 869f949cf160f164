"""The API with little and with much stored: how long its answers take, how many jobs it takes in, what streams cost.

    python -m bench.service --database sqlite --jobs 10000

Prints a table: each list and detail call, asked by 20 clients that think for half a second in between, with 100 jobs
and with `--jobs` (ten trials each); then jobs submitted a second by 20 clients at once, none lost or doubled; then the
memory of the API process with 200 idle event streams.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from bench.faults import free_port
from bench.nights import client
from bench.postgres_server import postgres_server
from service import migrate
from service.database import Database
from service.ids import new_id
from service.models import Confirmation, Event, Job, Point, Recipe, Trial
from service.settings import Settings
from tuner.spec import resolve

CLIENTS = 20
THINK_S = 0.5
ASK_S = 12.0
SUBMIT_S = 10.0
STREAMS = 200
FEW = 100
TRIALS, POINTS, EVENTS = 10, 5, 20
BATCH = 500
SPEC: dict[str, Any] = {"workload": "quadratic", "budget": {"trials": TRIALS}}


@dataclass(frozen=True, slots=True)
class Stored:
    """Some ids to ask for."""

    jobs: Sequence[str]
    recipes: Sequence[str]


@dataclass(frozen=True, slots=True)
class Served:
    """An API process, a client of it, and what its database holds."""

    api: httpx.Client
    port: int
    pid: int
    stored: Stored


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--jobs", type=int, default=10_000)
    arguments = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {}
    for count in (FEW, arguments.jobs):
        with place(arguments.database) as settings, serving(settings, fill(settings, count)) as served:
            for name, found in ask_all(served.api, served.stored).items():
                times.setdefault(name, []).append(found)
            if count != FEW:
                show(times, count)
                submit_many(settings, served.api)
                hold_streams(served)
    return 0


def show(times: dict[str, list[tuple[float, float]]], count: int) -> None:
    print(f"{'call':<34}{f'p50 of {FEW} jobs':>18}{'p95':>9}{f'p50 of {count}':>16}{'p95':>9}{'p95 ratio':>11}")
    for name, (few, many) in times.items():
        figures = f"{few[0]:>15.1f} ms{few[1]:>6.1f} ms{many[0]:>13.1f} ms{many[1]:>6.1f} ms{many[1] / few[1]:>11.2f}"
        print(f"{name:<34}{figures}", flush=True)


@contextlib.contextmanager
def place(database: str) -> Iterator[Settings]:
    """A home and an empty, migrated database."""
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="x5b")))
        url = f"sqlite:///{home}/x5tune.db"
        if database == "postgres":
            url = stack.enter_context(postgres_server()).url
        settings = Settings(home, url, max_open_jobs=10**9)
        migrate.upgrade(settings)
        yield settings


def fill(settings: Settings, count: int) -> Stored:
    """Store ended jobs, each with trials, curves, confirmations, recipes and events."""
    database = Database(settings.database_url)
    resolved = resolve(SPEC).job.to_json()
    ids = [new_id() for _ in range(count)]
    recipes = [new_id() for _ in range(count)]
    for start in range(0, count, BATCH):
        part = range(start, min(count, start + BATCH))
        with database.write() as session:
            for model, rows in (
                (Job, [_job(ids[n], resolved) for n in part]),
                (Trial, [_trial(ids[n], number) for n in part for number in range(TRIALS)]),
                (Point, [_point(ids[n], m, i) for n in part for m in range(TRIALS) for i in range(1, POINTS + 1)]),
                (Confirmation, [_confirmation(ids[n], seed) for n in part for seed in range(2)]),
                (Recipe, [_recipe(ids[n], recipes[n]) for n in part]),
                (Event, [_event(ids[n], seq) for n in part for seq in range(1, EVENTS + 1)]),
            ):
                session.execute(sa.insert(model), rows)
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")
    database.close()
    return Stored(ids, recipes)


def _job(job_id: str, resolved: Any) -> dict[str, Any]:
    states = {"state": "succeeded", "verdict": "recommended", "stop_reason": "trials"}
    best = {"baseline_trial": 0, "best_trial": 1, "best_value": 0.1, "total": TRIALS, "last_event": EVENTS}
    named = {"id": job_id, "name": f"job {job_id[-6:]}", "workload": "quadratic"}
    return {**named, "spec": SPEC, "resolved": resolved, **states, **best, "ended_at": datetime.now(UTC)}


def _trial(job_id: str, number: int) -> dict[str, Any]:
    kept = {
        "state": "ended",
        "outcome": "ok" if number < 6 else "pruned",
        "value": 1 / (number + 1),
        "value_kind": "finite",
    }
    return {"job_id": job_id, "number": number, "parameters": {"lr": 0.1}, "derived": {}, "log_tail": "x" * 500, **kept}


def _point(job_id: str, number: int, index: int) -> dict[str, Any]:
    value = {"value": 1 / index, "value_kind": "finite"}
    return {"job_id": job_id, "number": number, "index": index, "position": float(index), "step": index, **value}


def _confirmation(job_id: str, seed: int) -> dict[str, Any]:
    value = {"outcome": "ok", "value": 0.1, "value_kind": "finite", "split": "test"}
    return {"job_id": job_id, "trial": 1, "seed": seed, "is_baseline": False, **value}


def _recipe(job_id: str, recipe_id: str) -> dict[str, Any]:
    value = {"status": "proven", "workload": "quadratic", "device": "cpu", "value": 0.1, "parameters": {"lr": 0.1}}
    return {"id": recipe_id, "job_id": job_id, "trial": 1, "rank": 1, "derived": {}, **value}


def _event(job_id: str, seq: int) -> dict[str, Any]:
    return {"job_id": job_id, "seq": seq, "type": "end" if seq == EVENTS else "report", "data": {"trial": 0}}


@contextlib.contextmanager
def serving(settings: Settings, stored: Stored) -> Iterator[Served]:
    port = free_port()
    environment = {**os.environ, **settings.environment(), "X5TUNE_PORT": str(port)}
    command = [sys.executable, "-m", "x5tune.cli", "serve", "--no-runner"]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        with client(settings.home, port) as api:
            yield Served(api, port, psutil.Process(process.pid).children()[0].pid, stored)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def ask_all(api: httpx.Client, stored: Stored) -> dict[str, tuple[float, float]]:
    """Median and 95th percentile of each call in ms."""
    chance = random.Random(1)

    def job() -> str:
        return chance.choice(stored.jobs)

    calls: dict[str, Callable[[], str]] = {
        "GET /jobs": lambda: "/v1/jobs",
        "GET /jobs?limit=200": lambda: "/v1/jobs?limit=200",
        "GET /jobs?state=running": lambda: "/v1/jobs?state=running",
        "GET /jobs?q=": lambda: f"/v1/jobs?q={job()[-6:]}",
        "GET /jobs/{id}": lambda: f"/v1/jobs/{job()}",
        "GET /jobs/{id}/trials": lambda: f"/v1/jobs/{job()}/trials",
        "GET /jobs/{id}/trials/{number}": lambda: f"/v1/jobs/{job()}/trials/3",
        "GET /jobs/{id}/confirmations": lambda: f"/v1/jobs/{job()}/confirmations",
        "GET /jobs/{id}/recipes": lambda: f"/v1/jobs/{job()}/recipes",
        "GET /recipes": lambda: "/v1/recipes",
        "GET /recipes/{id}": lambda: f"/v1/recipes/{chance.choice(stored.recipes)}",
        "GET /": lambda: "/",
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    stop = time.monotonic() + ASK_S * len(calls) / 4

    def one(seed: int) -> None:
        mine = random.Random(seed)
        while time.monotonic() < stop:
            name = mine.choice(list(calls))
            began = time.perf_counter()
            answer = api.get(calls[name]())
            found[name].append(1e3 * (time.perf_counter() - began))
            assert answer.status_code == 200, (name, answer.text)
            time.sleep(mine.uniform(0, 2 * THINK_S))

    _at_once(one)
    return {name: (statistics.median(each), statistics.quantiles(each, n=20)[-1]) for name, each in found.items()}


def submit_many(settings: Settings, api: httpx.Client) -> None:
    """Submit as fast as 20 clients can; every answer is a job of its own in the database."""
    taken: list[str] = []
    stop = time.monotonic() + SUBMIT_S

    def one(_: int) -> None:
        while time.monotonic() < stop:
            answer = api.post("/v1/jobs", json=SPEC)
            assert answer.status_code == 201, answer.text
            taken.append(answer.json()["id"])

    _at_once(one)
    database = Database(settings.database_url)
    with database.read() as session:
        known = set(session.scalars(sa.select(Job.id).where(Job.state == "queued")))
    database.close()
    lost, doubled = len(set(taken) - known), len(known) - len(set(taken))
    print(f"submitted {len(taken) / SUBMIT_S:.0f} jobs a second; {lost} lost, {doubled} doubled", flush=True)


def hold_streams(served: Served) -> None:
    """Memory of the API process with idle event streams of a queued job."""
    api, mib = served.api, 1 << 20
    job_id = api.post("/v1/jobs", json=SPEC).json()["id"]
    before = psutil.Process(served.pid).memory_info().rss
    head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: {api.headers['authorization']}\r\n\r\n"
    sockets = []
    for _ in range(STREAMS):
        sock = socket.create_connection(("127.0.0.1", served.port), 10)
        sock.sendall(head.encode())
        sockets.append(sock)
    answered = sum(b"200 OK" in sock.recv(65536) for sock in sockets)
    time.sleep(5.0)
    held = psutil.Process(served.pid).memory_info().rss
    began = time.perf_counter()
    api.get(f"/v1/jobs/{served.stored.jobs[0]}").raise_for_status()
    quick = 1e3 * (time.perf_counter() - began)
    for sock in sockets:
        sock.close()
    print(
        f"{answered} event streams: {held / mib:.0f} MiB (before {before / mib:.0f}); a call beside them {quick:.0f} ms"
    )


def _at_once(work: Any) -> None:
    failed: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


if __name__ == "__main__":
    sys.exit(main())
