"""The API with little and with much stored: how long its answers take, how many jobs it takes in, what streams cost.

    python -m bench.service --database sqlite --jobs 10000

Prints a table: each list and detail call, asked by 20 clients that think for half a second in between (40 calls a
second), with 100 jobs and with `--jobs` (ten trials each), and what it costs the API's process in CPU, asked by one
client; a page of 200 has twice the rows in the larger database, one of 100 as many. Then the same calls as fast as 20
clients can, that is how many a second there are at most (and their times follow from it: 20 / throughput); then jobs
submitted a second by 20 clients at once, none lost or doubled; what 200 idle event streams cost, and a call beside
them; and one token that submits twice its quota. Clients, database and API share the machine's cores: on a busy one the
times are the machine's.
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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
WARM_UP, COSTED = 10, 100
ASK_S = 12.0
RUSH_S = 10.0
SUBMIT_S = 10.0
STREAMS, STREAMED_JOBS = 200, 50
IDLE_S = 10.0
QUOTA = 1000
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
    times: dict[str, list[tuple[float, float, float]]] = {}
    for count in (FEW, arguments.jobs):
        with place(arguments.database) as settings:
            stored = fill(settings, count)
            with serving(settings, stored) as served:
                costs = cost_all(served)
                for name, found in ask_all(served.api, stored).items():
                    times.setdefault(name, []).append((*found, costs[name]))
                if count != FEW:
                    show(times, count)
                    rush(served)
                    submit_many(settings, served)
                    hold_streams(served)
            if count != FEW:
                with serving(replace(settings, max_open_jobs=QUOTA), stored) as served:
                    exceed(served)
    return 0


def show(times: dict[str, list[tuple[float, float, float]]], count: int) -> None:
    heads = (
        f"{f'p50 of {FEW} jobs':>18}{'p95':>9}{'CPU':>9}{f'p50 of {count}':>16}{'p95':>9}{'CPU':>9}{'p95 ratio':>11}"
    )
    print(f"{'call':<34}{heads}{'CPU ratio':>11}")
    for name, (few, many) in times.items():
        small, large = (f"{cpu:>6.1f} ms" for cpu in (few[2], many[2]))
        figures = f"{few[0]:>15.1f} ms{few[1]:>6.1f} ms{small}{many[0]:>13.1f} ms{many[1]:>6.1f} ms{large}"
        print(f"{name:<34}{figures}{many[1] / few[1]:>11.2f}{many[2] / few[2]:>11.2f}", flush=True)


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
    if not settings.database_url.startswith("sqlite"):  # as PostgreSQL does by itself after a while, and SQLite never
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
    database.close()
    return Stored(ids, recipes)


def _job(job_id: str, resolved: Any) -> dict[str, Any]:
    states = {"state": "succeeded", "verdict": "recommended", "stop_reason": "trials"}
    best = {"baseline_trial": 0, "best_trial": 1, "best_value": 0.1, "total": TRIALS, "last_event": EVENTS}
    moment = datetime.now(UTC)
    named = {"id": job_id, "name": f"job {job_id[-6:]}", "workload": "quadratic"}
    return {**named, "spec": SPEC, "resolved": resolved, **states, **best, "started_at": moment, "ended_at": moment}


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
    """Median and 95th percentile of each call in ms, by clients that think in between."""
    calls = calls_of(stored)
    found = ask(api, calls, ASK_S * len(calls) / 4, THINK_S)
    return {name: (statistics.median(each), percentile_95(each)) for name, each in found.items()}


def cost_all(served: Served) -> dict[str, float]:
    """CPU of the API's process in ms for each call, by one client: what a busy machine blurs less than times."""
    found = {}
    for name, path in calls_of(served.stored).items():
        for _ in range(WARM_UP):
            time_of(served.api, path())
        spent = cpu_s(served.pid)
        for _ in range(COSTED):
            time_of(served.api, path())
        found[name] = 1e3 * (cpu_s(served.pid) - spent) / COSTED
    return found


def rush(served: Served) -> None:
    """The same without a pause."""
    spent, began = cpu_s(served.pid), time.monotonic()
    times = [ms for each in ask(served.api, calls_of(served.stored), RUSH_S, 0.0).values() for ms in each]
    seconds = time.monotonic() - began
    each_ms = 1e3 * (cpu_s(served.pid) - spent) / len(times)
    print(
        f"without a pause: {len(times) / seconds:.0f} calls a second, {each_ms:.1f} ms of the API's CPU each; "
        f"p50 {statistics.median(times):.0f} ms, p95 {percentile_95(times):.0f} ms",
        flush=True,
    )


def percentile_95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20)[-1]


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def calls_of(stored: Stored) -> dict[str, Callable[[], str]]:
    """The calls by name, each with its path, of a job or recipe by chance."""
    chance = random.Random(1)

    def job() -> str:
        return chance.choice(stored.jobs)

    return {
        "GET /jobs": lambda: "/v1/jobs",
        "GET /jobs?limit=100": lambda: "/v1/jobs?limit=100",
        "GET /jobs?limit=200": lambda: "/v1/jobs?limit=200",
        "GET /jobs?state=running": lambda: "/v1/jobs?state=running",
        "GET /jobs?state=succeeded": lambda: "/v1/jobs?state=succeeded&limit=20",
        "GET /jobs?workload=": lambda: "/v1/jobs?workload=none-of-these",
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


def ask(
    api: httpx.Client, calls: dict[str, Callable[[], str]], seconds: float, think_s: float
) -> dict[str, list[float]]:
    """How long each answer took, in ms."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    stop = time.monotonic() + seconds

    def one(seed: int) -> None:
        mine = random.Random(seed)
        while time.monotonic() < stop:
            name = mine.choice(list(calls))
            found[name].append(time_of(api, calls[name]()))
            time.sleep(mine.uniform(0, 2 * think_s))

    _at_once(one)
    return found


def time_of(api: httpx.Client, path: str) -> float:
    began = time.perf_counter()
    answer = api.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return 1e3 * (time.perf_counter() - began)


def submit_many(settings: Settings, served: Served) -> None:
    """Submit as fast as 20 clients can; every answer is a job of its own in the database."""
    taken: list[str] = []
    spent, stop = cpu_s(served.pid), time.monotonic() + SUBMIT_S

    def one(_: int) -> None:
        while time.monotonic() < stop:
            answer = served.api.post("/v1/jobs", json=SPEC)
            assert answer.status_code == 201, answer.text
            taken.append(answer.json()["id"])

    _at_once(one)
    each_ms = 1e3 * (cpu_s(served.pid) - spent) / len(taken)
    database = Database(settings.database_url)
    with database.read() as session:
        known = set(session.scalars(sa.select(Job.id).where(Job.state == "queued")))
    database.close()
    lost, doubled = len(set(taken) - known), len(known) - len(set(taken))
    rate = f"{len(taken) / SUBMIT_S:.0f} jobs a second, {each_ms:.1f} ms of the API's CPU each"
    print(f"submitted {rate}; {lost} lost, {doubled} doubled", flush=True)


def exceed(served: Served) -> None:
    """One token asks for more than its quota, by 20 clients at once, while another looks."""
    made = served.api.post("/v1/tokens", json={"name": "eager", "scope": "submit"}).json()
    eager = {"Authorization": f"Bearer {made['token']}"}
    answers: list[httpx.Response] = []
    beside: list[float] = []

    def one(number: int) -> None:
        if number == 0:
            while len(answers) < QUOTA:
                beside.append(time_of(served.api, f"/v1/jobs/{served.stored.jobs[0]}"))
                time.sleep(0.05)
        else:
            for _ in range(2 * QUOTA // CLIENTS):
                answers.append(served.api.post("/v1/jobs", json=SPEC, headers=eager))

    _at_once(one)
    statuses = Counter(answer.status_code for answer in answers)
    detail = next((answer.json()["detail"] for answer in answers if answer.status_code == 429), "")
    print(f"{len(answers)} jobs of one token: {dict(statuses)}; {detail}")
    print(f"calls beside them p50 {statistics.median(beside):.0f} ms, p95 {percentile_95(beside):.0f} ms", flush=True)


def hold_streams(served: Served) -> None:
    """What idle event streams of queued jobs cost the API process."""
    api, mib = served.api, 1 << 20
    waiting = [api.post("/v1/jobs", json=SPEC).json()["id"] for _ in range(STREAMED_JOBS)]
    before = psutil.Process(served.pid).memory_info().rss
    rest = f"HTTP/1.1\r\nHost: x\r\nAuthorization: {api.headers['authorization']}\r\n\r\n"
    sockets = []
    for number in range(STREAMS):
        head = f"GET /v1/jobs/{waiting[number % STREAMED_JOBS]}/events {rest}"
        sock = socket.create_connection(("127.0.0.1", served.port), 10)
        sock.sendall(head.encode())
        sockets.append(sock)
    answered = sum(b"200 OK" in sock.recv(65536) for sock in sockets)
    time.sleep(2.0)
    spent = cpu_s(served.pid)
    time.sleep(IDLE_S)
    share = (cpu_s(served.pid) - spent) / IDLE_S
    held = psutil.Process(served.pid).memory_info().rss
    beside = [time_of(api, f"/v1/jobs/{job_id}") for job_id in served.stored.jobs[:100]]
    for sock in sockets:
        sock.close()
    print(
        f"{answered} event streams: {held / mib:.0f} MiB (before {before / mib:.0f}), {share:.0%} of a core; "
        f"calls beside them p50 {statistics.median(beside):.0f} ms, p95 {percentile_95(beside):.0f} ms"
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
