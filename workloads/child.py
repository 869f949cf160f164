"""What a forked child does with a workload: run it, and say how it ended."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from pathlib import Path

from workloads.channel import ChannelProbe, read_config
from workloads.contract import Diverged, Stop, Workload

OUT_OF_MEMORY_MARKS = ("MemoryError", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")


def run(workload: Workload, config_path: str, control_path: str) -> int:
    """Train one probe; returns the exit status. The `end` message carries the outcome, its reason and a traceback."""
    config = read_config(Path(config_path).read_text(encoding="utf-8"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control_path)
        probe = ChannelProbe(config, connection, getattr(workload, "tokens_per_sample", None))
        probe.send({"type": "hello", "pid": outer_pid()})
        try:
            workload.run(config, probe)
        except Stop as stop:
            probe.send({"type": "end", "outcome": "stopped", "reason": stop.reason})
            return 0
        except Diverged as error:
            probe.send({"type": "end", "outcome": "diverged", "reason": str(error)})
            return 0
        except SystemExit as leaving:  # a script that ends itself, `x5tune.Stop` among them
            if leaving.code not in (None, 0):
                reason = f"exited with status {leaving.code}"
                probe.send({"type": "end", "outcome": "crashed", "reason": reason[:2000]})
                return leaving.code if isinstance(leaving.code, int) else 1
        except Exception as error:
            traceback.print_exc()
            sys.stderr.flush()
            outcome = "out_of_memory" if is_out_of_memory(error) else "crashed"
            probe.send({"type": "end", "outcome": outcome, "reason": f"{type(error).__name__}: {error}"[:2000]})
            return 1
        probe.send({"type": "end", "outcome": "ok", "reason": None})
        return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` says that memory ran out, on the device or on the host."""
    return isinstance(error, MemoryError) or any(mark in str(error) for mark in OUT_OF_MEMORY_MARKS)


def outer_pid() -> int:
    """Our pid as the machine's /proc shows it, which differs from `os.getpid()` inside a PID namespace."""
    try:
        return int(Path("/proc/self").readlink().name)
    except OSError:
        return os.getpid()
