"""Starting and stopping Ray for one runner: an embedded one of our own, or a cluster by address."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tuner.errors import ClusterUnavailableError

OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's least; nothing of ours travels through it
WORKER_LOG = re.compile(r"worker.*[-_](\d+)\.(log|out|err)(\.\d+)?")
VITAL = ("gcs_server", "raylet")
WATCH_S = 0.5
CONNECT_S = 5.0
START_S = 120.0
FOLDER_NAME = re.compile("[0-9a-f]{4}")
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # its kill would end the whole fit(); see docs/decisions
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_THRESHOLD_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_ROTATION_MAX_BYTES": str(8 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
}


class ClusterGone(SystemExit):
    """Ray has died under this process, which cannot get another one; the next process takes up the study."""

    def __init__(self, reason: str = "Ray has no living node left") -> None:
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray that is running. `folder` is a short private directory for sockets and Tune's files."""

    cpus: float
    gpus: float
    folder: Path


def has_living_node() -> bool:
    """Whether Ray could still start something somewhere."""
    import ray

    return any(node["Alive"] for node in ray.nodes())  # type: ignore[no-untyped-call]  # Ray


def runtime_folder() -> Path:
    """A short private per-user directory: socket paths end at 107 bytes. Leftovers of dead processes are removed."""
    root = Path(tempfile.gettempdir()) / f"x5-{os.getuid()}"
    if len(str(root)) > 40:
        root = Path("/tmp") / f"x5-{os.getuid()}"  # noqa: S108 - made private below
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to somebody else; set TMPDIR to a folder of your own")
    for entry in root.iterdir():
        if FOLDER_NAME.fullmatch(entry.name):
            with contextlib.suppress(OSError), locked(entry):
                remove(entry)
    return root


@contextlib.contextmanager
def private_folder() -> Iterator[Path]:
    """A new folder for this process, removed at the end. Its lock, which dies with us, tells it from a leftover."""
    root = runtime_folder()
    while True:
        folder = root / secrets.token_hex(2)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            folder.mkdir(mode=0o700)
            stack.enter_context(locked(folder))
            if folder.exists():  # nobody took it for a leftover before we had the lock
                release = stack.pop_all()
                break
    with release:
        try:
            yield folder
        finally:
            remove(folder)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raises OSError when it is gone or somebody else's."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def remove(folder: Path) -> None:
    """Remove a folder that a dying process may still be writing to."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def prune_logs(folder: Path) -> None:
    """Remove the logs of workers that have ended: a Ray that runs for months would fill the disk with them."""
    for path in folder.glob("session_2*/logs/*"):
        match = WORKER_LOG.search(path.name)
        if match and not psutil.pid_exists(int(match[1])):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def ray_cluster(
    address: str | None = None,
    cpus: int | None = None,
    on_failure: Callable[[str], None] | None = None,
    start_s: float = START_S,
) -> Iterator[Cluster]:
    """Ray for as long as the context lasts; an embedded one is taken down with everything that it wrote.

    `cpus` overrides what the embedded Ray believes to have. `on_failure` is called from a thread, with what happened,
    when Ray is not there after `start_s`, or when a process that the embedded one cannot do without has died: Ray
    itself would try again and again, or wait for a minute and abort this process. Raises ClusterUnavailableError.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    import ray

    outer, watch = contextlib.ExitStack(), contextlib.ExitStack()
    folder = outer.enter_context(private_folder())
    logging.getLogger("ray").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        is_up = threading.Event()
        if on_failure is not None:
            watch.enter_context(watched(on_failure, is_up, start_s))
        if address:
            connect(address, common)
        else:
            start(folder, cpus, common)
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray
        is_up.set()
        yield Cluster(float(total.get("CPU", 0)), float(total.get("GPU", 0)), folder)
    finally:
        with outer, contextlib.suppress(Exception):
            watch.close()
            ray.shutdown()


def start(folder: Path, cpus: int | None, common: Mapping[str, Any]) -> None:
    """Start an embedded Ray; raises ClusterUnavailableError."""
    import ray

    if "RAY_AUTH_TOKEN_PATH" not in os.environ:  # else Ray keeps one in HOME, which may not be writable
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
    try:
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            **common,
        )
    except Exception as error:  # Ray's are of any kind: one of its processes did not come up, a port was taken
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ClusterUnavailableError(
            f"Ray cannot be started: {said[0].rstrip('.')}. `x5tune doctor` says what may be wrong with this machine."
        ) from error


def connect(address: str, common: Mapping[str, Any]) -> None:
    """Join the cluster at `address`; raises ClusterUnavailableError."""
    import ray

    host, _, port = address.rpartition(":")
    try:
        if port.isdigit():  # Ray itself would try for more than a minute
            socket.create_connection((host.removeprefix("ray://").strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address=address, **common)
    except (OSError, RuntimeError, ValueError) as error:  # Ray's, for no answer, a wrong token and a wrong form
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise ClusterUnavailableError(
            f"The Ray cluster at {address} (X5TUNE_RAY_ADDRESS) cannot be joined: {said[0].rstrip('.')}. Is its head"
            " running there, and are RAY_AUTH_MODE and RAY_AUTH_TOKEN here what it was started with?"
        ) from error


@contextlib.contextmanager
def watched(on_failure: Callable[[str], None], is_up: threading.Event, start_s: float) -> Iterator[None]:
    """Say once what is wrong with Ray: one of its vital processes has died, or it is not up `start_s` from now."""
    deadline = time.monotonic() + start_s
    vital: dict[str, psutil.Process] = {}
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_S):
            dead = next((name for name, process in vital.items() if is_dead(process)), None)
            reason = f"Ray's {dead} has died" if dead is not None else None
            if reason is None and not is_up.is_set() and time.monotonic() > deadline:
                reason = f"Ray has not started within {start_s:g} s"
            if reason is not None:
                if not over.is_set():
                    on_failure(reason)
                return
            if len(vital) < len(VITAL):
                vital.update(vital_children())

    thread = threading.Thread(target=watch, name="ray-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def vital_children() -> dict[str, psutil.Process]:
    """The processes that our embedded Ray cannot do without, by name."""
    found = {}
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.name() in VITAL:
                found[child.name()] = child
    return found


def is_dead(process: psutil.Process) -> bool:
    """Whether it has ended, reaped or not."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
