"""What the processes of a probe hold, watched from outside, as the kernel counts it for their limit."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

INTERVAL_S = 0.001
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemorySampler:
    """The most that any one process of a probe has added to the warm parent's own data, in bytes.

    Private writable memory, which is what RLIMIT_DATA caps for each process by itself: not what is shared or maps a
    file. A command's processes start from nothing. A peak shorter than `INTERVAL_S` may be missed; what the C library
    has once taken for small tensors it mostly keeps.
    """

    def __init__(self, parent_pid: int, *, is_namespaced: bool, is_command: bool) -> None:
        self.peak_bytes = 0
        self._over = threading.Event()
        children = children_of(parent_pid)
        self._parent = children[0] if is_namespaced and children else parent_pid
        self._base = 0 if is_command else data_bytes(self._parent)
        self._thread = threading.Thread(target=self._watch, name="memory-sampler", daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End the watch; the peak."""
        self._over.set()
        self._thread.join()
        return self.peak_bytes

    def _watch(self) -> None:
        """Until told to stop, or until the probe is gone."""
        has_begun = False
        while not self._over.wait(INTERVAL_S):
            found = children_of(self._parent)
            if not found and (has_begun or not data_bytes(self._parent)):
                return
            has_begun = has_begun or bool(found)
            while found:
                pid = found.pop()
                self.peak_bytes = max(self.peak_bytes, data_bytes(pid) - self._base)
                found.extend(children_of(pid))


def children_of(pid: int) -> list[int]:
    """The children of a process; none when it is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def data_bytes(pid: int) -> int:
    """Private writable memory of a process with its stack; 0 when it is gone."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[5]) * PAGE_BYTES
    return 0
