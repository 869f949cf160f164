"""A folder for a command that runs probes itself: gone when that ends, by whatever, or when the next one starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

LOCK = "lock"


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new folder, its name short, that is removed afterwards, on TERM and hang-up too.

    Those that a killed process has left are removed first: a living one holds a lock on its own, which tells them apart
    also where processes are numbered otherwise.
    """
    sweep(Path(tempfile.gettempdir()), prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        with ended_by_signals():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def sweep(place: Path, prefix: str) -> None:
    """Remove the folders in `place` whose owners are gone."""
    for folder in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # held, of another user, or gone by now
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """TERM and HUP end the process as an exception does, through everything that cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)  # once is enough, and nothing may cut the cleaning short
        raise SystemExit(128 + number)

    before = {each: signal.signal(each, leave) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
