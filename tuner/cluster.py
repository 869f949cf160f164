"""Starting and stopping Ray for one runner: an embedded one of our own, or a cluster by address."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OBJECT_STORE_BYTES = 80 * 1024 * 1024  # Ray's least; nothing of ours travels through it
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # its kill would end the whole fit(); see docs/decisions
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "86400",
    "TUNE_WARN_THRESHOLD_S": "10",
    "RAY_AIR_NEW_OUTPUT": "0",
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray that is running. `folder` is a short private directory for sockets and Tune's files."""

    cpus: float
    gpus: float
    folder: Path


def runtime_folder() -> Path:
    """A short private per-user directory: socket paths end at 107 bytes. Leftovers of dead processes are removed."""
    root = Path(tempfile.gettempdir()) / f"x5-{os.getuid()}"
    if len(str(root)) > 40:
        root = Path("/tmp") / f"x5-{os.getuid()}"  # noqa: S108 - made private below
    root.mkdir(mode=0o700, exist_ok=True)
    if root.is_symlink() or root.stat().st_uid != os.getuid():
        raise PermissionError(f"{root} belongs to somebody else; set TMPDIR to a folder of your own")
    for entry in root.iterdir():
        if entry.name.isdecimal() and not Path(f"/proc/{entry.name}").exists() and Path("/proc/self").exists():
            shutil.rmtree(entry, ignore_errors=True)
    return root


@contextlib.contextmanager
def ray_cluster(address: str | None = None, cpus: int | None = None) -> Iterator[Cluster]:
    """Ray for as long as the context lasts; an embedded one is taken down with everything that it wrote.

    `cpus` overrides what the embedded Ray believes to have.
    """
    os.environ.update({name: value for name, value in QUIET.items() if name not in os.environ})
    import ray

    folder = runtime_folder() / str(os.getpid())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    logging.getLogger("ray").setLevel(logging.ERROR)
    common: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
    try:
        if address:
            ray.init(address=address, **common)
        else:
            if "RAY_AUTH_TOKEN_PATH" not in os.environ:  # else Ray keeps one in HOME, which may not be writable
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
            ray.init(
                address="local",
                num_cpus=cpus,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(folder),
                **common,
            )
        total: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray
        yield Cluster(float(total.get("CPU", 0)), float(total.get("GPU", 0)), folder)
    finally:
        with contextlib.suppress(Exception):
            ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
