"""Child processes: found from any folder, and never outliving their parent.

A parent holds the other end of its child's standard input. This works wherever pipes do, also when the parent is
killed. A child that is stopped (SIGSTOP) notices when it goes on.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path


def end_with_parent(grace_s: float) -> None:
    """When standard input ends, send ourselves TERM; leave by force after `grace_s`."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def import_path() -> dict[str, str]:
    """What lets a child find this package from any folder: nothing when it is installed."""
    root = Path(__file__).resolve().parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return {}
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": f"{root}{os.pathsep}{given}" if given else str(root)}
