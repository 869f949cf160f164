"""A schedule that is due every minute, two API processes and a runner on PostgreSQL: is every night one job, compared?

`python -m bench.nights --minutes 10` prints the nights and what is wrong with them; exit code 1 when anything is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from bench.faults import free_port
from bench.postgres_server import postgres_server

SPEC = {"workload": "quadratic", "budget": {"trials": 6}, "confirm": {"top": 1, "seeds": 5}}
RULES = {"name": "minutely", "cron": "* * * * *", "timezone": "Europe/Berlin", "overlap": "queue", "spec": SPEC}
START_S = 60.0
REST_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=10)
    minutes = parser.parse_args().minutes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then too
    with contextlib.ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="x5n"))
        server = stack.enter_context(postgres_server())
        home = Path(name)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("X5TUNE_", "RAY_"))},
            **{"X5TUNE_HOME": str(home / "runner"), "X5TUNE_DATABASE_URL": server.url, "TMPDIR": name},
        }
        run(environment, "migrate").wait(START_S)
        ports = [free_port(), free_port()]
        homes = [home / str(port) for port in ports]  # as on two machines
        for port, own in zip(ports, homes, strict=True):
            apart = {**environment, "X5TUNE_HOME": str(own)}
            stack.enter_context(serving(apart, "serve", "--no-runner", "--port", str(port)))
        stack.enter_context(serving(environment, "runner"))
        clients = [stack.enter_context(client(own, port)) for port, own in zip(ports, homes, strict=True)]
        made = clients[0].post("/v1/schedules", json=RULES)
        made.raise_for_status()
        path = f"/v1/schedules/{made.json()['id']}"
        time.sleep(60.0 * minutes)
        clients[1].patch(path, json={"state": "paused"}).raise_for_status()
        nights = compared(clients[1], path)
        jobs = clients[0].get("/v1/jobs", params={"limit": 200}).json()["items"]
    return report(nights, jobs, minutes)


def report(nights: list[dict[str, Any]], jobs: list[dict[str, Any]], minutes: int) -> int:
    wrong = []
    for night in nights:
        told = night["comparison"] or {}
        print(night["due_at"], night["outcome"], told.get("result"), told.get("before"), told.get("now"))
    due = [datetime.fromisoformat(night["due_at"]) for night in nights]
    if len(nights) not in (minutes, minutes + 1):
        wrong.append(f"{len(nights)} nights in {minutes} minutes")
    if any((later - earlier).total_seconds() != 60 for earlier, later in pairwise(due)):
        wrong.append("the nights are not a minute apart")
    if sorted(job["id"] for job in jobs) != sorted(str(night["job_id"]) for night in nights):
        wrong.append(f"{len(jobs)} jobs for {len(nights)} nights")
    if any(night["comparison"] is None for night in nights):
        wrong.append("a night was not compared")
    print(f"{len(nights)} nights, {len(jobs)} jobs; wrong: {'; '.join(wrong) or 'nothing'}")
    return 1 if wrong else 0


def compared(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    """The nights, the oldest first, once all of them are compared or REST_S are over."""
    deadline = time.monotonic() + REST_S
    while True:
        nights: list[dict[str, Any]] = api.get(path).json()["nights"][::-1]
        if all(night["comparison"] for night in nights) or time.monotonic() > deadline:
            return nights
        time.sleep(1.0)


def run(environment: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "x5tune.cli", *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def serving(environment: dict[str, str], *arguments: str) -> Iterator[None]:
    process = run(environment, *arguments)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def client(home: Path, port: int) -> Iterator[httpx.Client]:
    """A client of the API on this port, once it answers."""
    deadline = time.monotonic() + START_S
    address = f"http://127.0.0.1:{port}"
    while True:
        with contextlib.suppress(httpx.TransportError, OSError, ValueError):
            if httpx.get(f"{address}/readyz", trust_env=False).status_code == 200:
                token = json.loads((home / "client.json").read_text())["token"]
                break
        if time.monotonic() > deadline:
            raise TimeoutError(f"{address} is not ready within {START_S:.0f} s")
        time.sleep(0.2)
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(keepalive_expiry=2.0)  # before the server closes a connection that is idle
    with httpx.Client(base_url=address, headers=headers, timeout=30, trust_env=False, limits=limits) as found:
        yield found


if __name__ == "__main__":
    sys.exit(main())
