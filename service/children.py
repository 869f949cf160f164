"""Child processes: found from any folder, never outliving their parent, and nothing of theirs outliving them.

A parent holds the other end of its child's standard input. This works wherever pipes do, also when the parent is
killed. A child that is stopped (SIGSTOP) notices when it goes on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(grace_s: float) -> None:
    """When standard input ends, send ourselves TERM; leave by force after `grace_s`."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def adopt_orphans() -> None:
    """From now on what our descendants leave behind becomes our child (Linux; a no-op elsewhere)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """Kill all that came from this process, without waiting for any of it."""
    with contextlib.suppress(psutil.Error):
        _kill(psutil.Process().children(recursive=True))


def _kill(processes: Iterable[psutil.Process]) -> None:
    for each in processes:
        with contextlib.suppress(psutil.Error):
            each.kill()


def end_orphans(ours: Collection[int]) -> None:
    """Kill and reap every child of ours that is not among these, with all that came from it.

    Ray's agents, for one, outlive their Ray by a minute.
    """
    for child in psutil.Process().children():
        if child.pid in ours:
            continue
        with contextlib.suppress(psutil.Error):
            _kill([child, *child.children(recursive=True)])
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child.pid, 0)


def import_path() -> dict[str, str]:
    """What lets a child find this package from any folder: nothing when it is installed."""
    root = Path(__file__).resolve().parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return {}
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{given}" if given else str(root)}
