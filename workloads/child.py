"""What a forked child does with a workload: run it, and say how it ended."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workloads.channel import ChannelProbe, read_config
from workloads.contract import Diverged, Pause, Probe, ProbeConfig, Stop, Workload
from workloads.out_of_memory import is_out_of_memory


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, in the words of the closing message, and the exit status that goes with it."""

    outcome: str
    reason: str | None
    status: int = 0

    @property
    def is_failure(self) -> bool:
        return self.outcome in ("crashed", "out_of_memory")

    def message(self) -> dict[str, object]:
        """The closing message."""
        return {"type": "end", **{name: value for name, value in asdict(self).items() if name != "status"}}


def run(workload: Workload, config_path: str, control_path: str) -> int:
    """Train one probe; returns the exit status. The `end` message carries the outcome, its reason and a traceback."""
    config = read_config(Path(config_path).read_text(encoding="utf-8"))
    with connected(control_path) as connection:
        tokens = getattr(workload, "tokens_per_sample", None)
        probe = ChannelProbe(config, connection, tokens, lambda: can_pause(workload, config))
        probe.send({"type": "hello", "pid": outer_pid()})
        measured: dict[str, Any] = {}
        end = play(lambda: start(workload, config, probe, measured))
        probe.send({**end.message(), **measured})
        return end.status


def start(workload: Workload, config: ProbeConfig, probe: Probe, measured: dict[str, Any]) -> None:
    """Train, or put into `measured` what phase fit wants to know of a workload that our loop trains."""
    if config.fit is None:
        workload.run(config, probe)
    else:
        measured["fit"] = workload.measure(config, probe)  # type: ignore[attr-defined]  # only such a one is asked


def can_pause(workload: Workload, config: ProbeConfig) -> bool:
    """Whether a pause would keep the run's state."""
    return config.checkpoint_dir is not None and bool(getattr(workload, "can_pause", False))


@contextlib.contextmanager
def connected(control_path: str) -> Iterator[socket.socket]:
    """A connection to the slot."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control_path)
        yield connection


def play(train: Callable[[], object]) -> End:
    """Train to the end, whatever that is; a traceback goes to standard error."""
    try:
        train()
    except Pause as pause:
        return End("paused", pause.reason)
    except Stop as stop:
        return End("stopped", stop.reason)
    except Diverged as error:
        return End("diverged", str(error))
    except SystemExit as leaving:  # a script that ends itself, `x5tune.Stop` among them
        if leaving.code not in (None, 0):
            status = leaving.code if isinstance(leaving.code, int) else 1
            return End("crashed", f"exited with status {leaving.code}"[:2000], status)
    except Exception as error:
        traceback.print_exc()
        sys.stderr.flush()
        outcome = "out_of_memory" if is_out_of_memory(error) else "crashed"
        return End(outcome, f"{type(error).__name__}: {error}"[:2000], 1)
    return End("ok", None)


def outer_pid() -> int:
    """Our pid as the machine's /proc shows it, which differs from `os.getpid()` inside a PID namespace."""
    try:
        return int(Path("/proc/self").readlink().name)
    except OSError:
        return os.getpid()
