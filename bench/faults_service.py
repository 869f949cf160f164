"""The service under fire: started, looked at, struck and started again.

Its processes are told apart by TMPDIR, which every one of them inherits, whoever its parent is by now.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import httpx
import psutil

from service.children import import_path

SERVE = "from service import settings, supervisor; supervisor.serve(settings.Settings.from_environment())"
SAMPLE_S = 0.25
START_S = 120.0


class UnderFire(Protocol):
    """What may be struck: one service, or several that share a database."""

    @property
    def count(self) -> int:
        """How many services there are."""

    @property
    def runners(self) -> Mapping[tuple[int, float], float]:
        """When each runner was started."""

    def running(self) -> contextlib.AbstractContextManager[None]: ...
    def stop(self) -> int | None: ...
    def keep_up(self) -> None: ...
    def is_ready(self) -> bool: ...
    def submit(self, spec: Mapping[str, Any], key: str) -> str: ...
    def processes(self) -> list[psutil.Process]: ...
    def find(self, target: str) -> list[psutil.Process]: ...
    def folders(self) -> list[Path]: ...
    def survivors(self) -> list[str]: ...
    def tail(self) -> str: ...


class ServiceUnderFire:
    """A supervisor with API and runner in a temporary home; `folder` is short (sockets) and nobody else's."""

    count = 1

    def __init__(
        self, folder: Path, database_url: str, port: int, lease_s: float, environment: Mapping[str, str] | None = None
    ) -> None:
        self.home = folder / "home"
        self.temporary = folder / "t"
        self.temporary.mkdir(parents=True)
        self.log = folder / "serve.log"
        self.url = f"http://127.0.0.1:{port}"
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._seen: dict[tuple[int, float], psutil.Process] = {}
        self.runners: dict[tuple[int, float], float] = {}
        self._stop = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="sampler", daemon=True)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("X5TUNE_", "RAY_"))},
            **import_path(),
            "X5TUNE_HOME": str(self.home),
            "X5TUNE_DATABASE_URL": database_url,
            "X5TUNE_PORT": str(port),
            "X5TUNE_LEASE_S": str(lease_s),
            "TMPDIR": str(self.temporary),
            **(environment or {}),
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.start()
        self._sampler.start()
        try:
            yield
        finally:
            self.stop()
            self._stop.set()
            self._sampler.join()
            for each in self.processes():
                each.kill()

    def start(self) -> None:
        """As an init system would: again until it stays up, for a port may still be taken by a dying child."""
        deadline = time.monotonic() + START_S
        while True:
            self.starts += 1
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", SERVE],
                    env=self._environment,
                    cwd=self.temporary.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            while self._process.poll() is None:
                if self.is_ready():
                    return
                time.sleep(0.1)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the service does not start: {self.tail()}")
            time.sleep(0.5)

    def stop(self) -> int | None:
        """TERM, as an administrator would; the exit status, None when it had to be killed."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            status = self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            status = None
        self._process = None
        return status

    def keep_up(self) -> None:
        """Start it again where it has died."""
        if self._process is None or self._process.poll() is not None:
            self._process = None
            self.start()

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def submit(self, spec: Mapping[str, Any], key: str) -> str:
        """Submit a job once, however often it has to be said."""
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(httpx.HTTPError, OSError, ValueError):
                token = json.loads((self.home / "client.json").read_text())["token"]
                headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
                answer = httpx.post(f"{self.url}/v1/jobs", json=spec, headers=headers, timeout=10, trust_env=False)
                if answer.is_success:
                    return str(answer.json()["id"])
                if answer.status_code < 500:
                    raise RuntimeError(f"{answer.status_code}: {answer.text}")
            if time.monotonic() > deadline:
                raise TimeoutError("the API does not take the job")
            self.keep_up()
            time.sleep(0.2)

    def processes(self) -> list[psutil.Process]:
        """Every living process of the service, the supervisor included.

        With all descendants: a process that has given itself another title has overwritten its environment.
        """
        found: dict[int, psutil.Process] = {}
        parents: dict[int, tuple[int, psutil.Process]] = {}
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if each.status() != psutil.STATUS_ZOMBIE:
                    parents[each.pid] = (each.ppid(), each)
                    if each.environ().get("TMPDIR") == str(self.temporary):
                        found[each.pid] = each
        while more := {pid: each for pid, (ppid, each) in parents.items() if ppid in found and pid not in found}:
            found |= more
        return list(found.values())

    def find(self, target: str) -> list[psutil.Process]:
        """The living processes of one kind."""
        return [each for each, kind in kinds(self.processes()).items() if kind == target]

    def folders(self) -> list[Path]:
        """What lies in the temporary folder: the folders of runners, and what should not be there."""
        root = self.temporary / f"x5-{os.getuid()}"
        known = (root.name, f"torchinductor_{getpass.getuser()}")  # a cache of torch, which shares it on purpose
        strange = [path for path in self.temporary.iterdir() if path.name not in known]
        return sorted([*root.glob("*"), *strange])

    def survivors(self) -> list[str]:
        """Processes once seen that still live."""
        found = []
        for each in {**self._seen, **{(p.pid, p.create_time()): p for p in self.processes()}}.values():
            with contextlib.suppress(psutil.Error):
                if each.is_running() and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{each.pid} {' '.join(each.cmdline())[:120]}")
        return found

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            found = self.processes()
            with contextlib.suppress(psutil.Error):
                for each, kind in kinds(found).items():
                    key = (each.pid, each.create_time())
                    self._seen[key] = each
                    if kind == "runner":
                        self.runners.setdefault(key, each.create_time())


def kinds(processes: list[psutil.Process]) -> dict[psutil.Process, str]:
    """What each process is; those that are nothing of interest are `other`."""
    found: dict[psutil.Process, str] = {}
    for each in processes:
        with contextlib.suppress(psutil.Error):
            found[each] = kind_of(each.name(), each.cmdline())
    parents = {each.pid for each, kind in found.items() if kind == "warm parent"}
    for each, kind in found.items():
        with contextlib.suppress(psutil.Error):
            if kind == "warm parent" and each.ppid() in parents:
                found[each] = "probe"
    return found


RULES: list[tuple[str, Callable[[str, str], bool]]] = [
    ("raylet", lambda name, _: name == "raylet"),
    ("gcs", lambda name, _: name.startswith("gcs_server")),
    ("slot", lambda _, line: line.startswith("ray::Slot")),
    ("other", lambda name, _: name in ("unshare", "setpriv")),
    ("warm parent", lambda _, line: "warm_parent.py" in line),
    ("runner", lambda _, line: "service.runner" in line and "-m" in line),
    ("api", lambda _, line: "service.api_process" in line),
    ("supervisor", lambda _, line: "supervisor.serve" in line),
]


def kind_of(name: str, command: list[str]) -> str:
    line = " ".join(command)
    return next((kind for kind, fits in RULES if fits(name, line)), "other")


def strike(each: psutil.Process, number: signal.Signals) -> bool:
    """Signal a process; whether it was still there."""
    with contextlib.suppress(psutil.Error):
        each.send_signal(number)
        return True
    return False
