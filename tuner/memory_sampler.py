"""What the processes of a probe hold, watched from outside, as the kernel counts it for their limit."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path

INTERVAL_S = 0.004
GONE_LOOKS = 50
"""In a row without a probe until it is gone: where other children end just then, the kernel may skip it."""


class MemorySampler:
    """The most that any one process of a probe has added to the warm parent's own data, in bytes.

    Private writable memory, which is what RLIMIT_DATA caps for each process by itself: not what is shared or maps a
    file. A command's processes start from nothing. The kernel keeps the peak of the whole address space; what of it is
    not data hardly changes once a run is under way, so that no peak is missed between two looks.

    A probe that takes more than `cap_bytes` is killed at once, so that it does not come to its limit: `is_over`.
    """

    def __init__(self, warm_pid: int, *, is_command: bool, cap_bytes: int | None = None) -> None:
        self._is_command, self._cap_bytes = is_command, cap_bytes
        self._is_over = False
        self._over = threading.Event()
        self._peaks: dict[int, int] = {}
        self._last: dict[int, Sizes] = {}
        self._parent = warm_pid
        self._base = Sizes.of(self._parent) or Sizes()
        self._held = 0 if is_command else self._base.data
        self._thread = threading.Thread(target=self._watch, name="memory-sampler", daemon=True)
        self._thread.start()

    @property
    def peak_bytes(self) -> int:
        return max(self._peaks.values(), default=0)

    @property
    def is_over(self) -> bool:
        """Whether the probe was ended because of what it took."""
        return self._is_over

    def stop(self) -> int:
        """End the watch; the peak."""
        self._over.set()
        self._thread.join()
        return self.peak_bytes

    def _watch(self) -> None:
        """Until told to stop, or until the probe is gone."""
        has_begun, without = False, 0
        while not self._over.wait(INTERVAL_S):
            probes = children_of(self._parent)
            without = 0 if probes else without + 1
            if (has_begun and without >= GONE_LOOKS) or (without and Sizes.of(self._parent) is None):
                return
            has_begun = has_begun or bool(probes)
            for probe in probes:
                self._look_at(probe)

    def _look_at(self, probe: int) -> None:
        """All processes of a probe."""
        if self._is_command and command_of(probe) == command_of(self._parent):
            return  # a fork that is not the command yet
        found = [probe]
        while found:
            pid = found.pop()
            sizes = Sizes.of(pid)
            if sizes is not None:
                self._note(pid, sizes)
            found.extend(children_of(pid))
        if self._cap_bytes is not None and self.peak_bytes > self._cap_bytes and not self._is_over:
            self._is_over = True
            kill(probe)

    def _note(self, pid: int, sizes: Sizes) -> None:
        last = self._last.get(pid)
        if last is not None and sizes.peak < last.peak:  # another program has taken over
            last, self._peaks[pid] = None, 0
        self._last[pid] = sizes
        self._peaks[pid] = max(self._peaks.get(pid, 0), sizes.data_peak_since(last) - self._held)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A process's address space in bytes: its peak, what it is now, and what of that is private and writable."""

    peak: int = 0
    now: int = 0
    data: int = 0

    @property
    def other(self) -> int:
        return self.now - self.data

    def data_peak_since(self, last: Sizes | None) -> int:
        """The peak of the data since the `last` look, known exactly as far as it has raised the peak of all."""
        if last is not None and self.peak == last.peak:
            return self.data
        return max(self.data, self.peak - max(self.other, last.other if last else 0))

    @staticmethod
    def of(pid: int) -> Sizes | None:
        """None when the process is gone."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
            found = {words[0]: int(words[1]) << 10 for words in lines if words[:1] and words[0] in _FIELDS}
            return Sizes(found["VmPeak:"], found["VmSize:"], found["VmData:"])
        return None


_FIELDS = ("VmPeak:", "VmSize:", "VmData:")


def command_of(pid: int) -> bytes | None:
    """What a process was started with; None when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return None


def kill(pid: int) -> None:
    """A probe with its process group, or itself before it has made one."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """The children of a process; none when it is gone."""
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []
