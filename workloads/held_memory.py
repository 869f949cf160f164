"""What this process holds of memory, told from the holes that its C library's heap keeps for later."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def held_bytes() -> int:
    """Private writable memory without the free pieces of the heap; with them where the C library does not count them.

    0 where /proc does not say.
    """
    with contextlib.suppress(OSError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[5]) * PAGE_BYTES - _free_bytes()
    return 0


def _free_bytes() -> int:
    count = _mallinfo2()
    return int(count().fordblks) if count is not None else 0


@cache
def _mallinfo2() -> Callable[[], Mallinfo2] | None:
    """glibc's count of its heap; None with another C library, or one before 2.33."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = Mallinfo2
    return function


class Mallinfo2(ctypes.Structure):
    """`struct mallinfo2` of malloc.h; `fordblks` are the bytes of free pieces, the heap's end included."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]
