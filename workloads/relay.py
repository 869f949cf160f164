"""The output of one of several processes, passed on line by line under its rank.

`python -I relay.py COMMAND...` is what torchrun starts for each rank of a user's command: it runs the command, passes
on what that prints, and says on X5TUNE_CONTROL how it failed. Lines of rank 0 stay as they are, those of rank 1 begin
with `[rank 1] `. Standard library only, and no syntax newer than Python 3.9: it runs in the user's own interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

CHUNK_BYTES = 65536
LONGEST_LINE_BYTES = 65536
LOOK_S = 0.05
TERM_GRACE_S = 2.0
TRACEBACK = b"Traceback (most recent call last)"
TORCHS_NAME = re.compile(r"^\[rank\d+\]: ")  # before every line of a traceback once there is a process group


class Relay:
    """Passes on whole lines from `source` to `sink` (file descriptors); a very long line goes in pieces."""

    def __init__(self, source: int, rank: int, sink: int = 1) -> None:
        os.set_blocking(source, False)
        self.source = source
        self.is_closed = False
        self.last_line = ""
        self.failed_at: float | None = None
        """When the last traceback began, by the machine's monotonic clock."""
        self.error = ""
        """The line that ended it."""
        self._is_in_traceback = False
        self._sink = sink
        self._prefix = b"" if rank == 0 else b"[rank %d] " % rank
        self._rest = b""

    def pump(self) -> bool:
        """Pass on what is there; whether there was something. `is_closed` says that there will be no more."""
        try:
            data = os.read(self.source, CHUNK_BYTES)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.is_closed = not data
        if self._rest and (self.is_closed or len(self._rest) > LONGEST_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._remember(line)
        self._write(b"".join(self._prefix + line + b"\n" for line in lines))
        return bool(data)

    def finish(self) -> None:
        """Pass on what is left once the process has ended, whoever may still hold the other end."""
        while self.pump():
            pass
        if self._rest:
            self._write(self._prefix + self._rest + b"\n")
            self._remember(self._rest)
            self._rest = b""

    def _remember(self, line: bytes) -> None:
        text = TORCHS_NAME.sub("", line.decode("utf-8", "replace").rstrip()[:500])
        if TRACEBACK in line:
            self.failed_at, self._is_in_traceback = time.monotonic(), True
        elif self._is_in_traceback and text and not text[0].isspace():
            self.error, self._is_in_traceback = text, False
        if text.strip():
            self.last_line = text.strip()

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._sink, data) :]


def main() -> int:
    """Run the command of one rank; returns its exit status, 128 and the signal's number when one has killed it."""
    rank = int(os.environ.get("RANK") or 0)
    environment = dict(os.environ)
    if rank > 0:
        environment["X5TUNE_REPORT"] = os.devnull  # only the lead reports
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(sys.argv[1:], stdout=write_end, stderr=write_end, env=environment)
    except OSError as error:
        sys.stderr.write(f"x5tune: cannot run {sys.argv[1]!r}: {error.strerror}\n")
        return 127
    os.close(write_end)
    told: list[int] = []

    def end(number: int, _: Any) -> None:
        """TERM has reached the whole group; what has not gone when the grace is over is killed."""
        if number == signal.SIGTERM:
            told.append(number)
            signal.setitimer(signal.ITIMER_REAL, TERM_GRACE_S)
        else:
            process.kill()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    relay = Relay(read_end, rank)
    while process.poll() is None and not relay.is_closed:
        select.select([read_end], [], [], LOOK_S)
        relay.pump()
    status = process.wait()
    relay.finish()
    if status != 0 and not told:
        # Where an exception ends a process, torch's threads may abort it on the way. No other signal is a consequence.
        raised = relay.error if status == -signal.SIGABRT else ""
        failed_at = (relay.failed_at or time.monotonic()) if status > 0 or raised else 0.0
        last = raised or relay.last_line
        tell({"type": "end", "rank": rank, "status": status, "last": last, "at": failed_at})
    return status if status >= 0 else 128 - status


def tell(message: dict[str, Any]) -> None:
    """Send a message to the slot; one that is gone needs none."""
    control = os.environ.get("X5TUNE_CONTROL")
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        if control:
            connection.connect(control)
            connection.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
