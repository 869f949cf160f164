"""The launcher of several processes for one run of a workload that x5tune trains.

It is the probe's own process: it starts the ranks, passes on what they print, and ends all of them as soon as one has
failed. When it dies itself, the kernel takes the ranks along.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from workloads.child import End, connected, outer_pid
from workloads.relay import LOOK_S, Relay

CAUSE_S = 0.5  # what failed for want of another may be heard of before that one's death


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank's process puts what it prints and how it ended (file descriptors), and what it finds around it."""

    output: int
    end: int
    environment: Mapping[str, str]


Start = Callable[[str, str, RankPlace], int]  # config path, control path; the process id


class Rank:
    """One rank as the launcher sees it."""

    def __init__(self, number: int, start: Callable[[RankPlace], int], environment: Mapping[str, str]) -> None:
        output, output_in = os.pipe()
        self.end_file, end_in = os.pipe()
        os.set_blocking(self.end_file, False)
        self.number = number
        self.relay = Relay(output, number)
        self.status: int | None = None
        self._said = b""
        self.is_mute = False
        self.pid = start(RankPlace(output_in, end_in, {**environment, "RANK": str(number), "LOCAL_RANK": str(number)}))
        os.close(output_in)
        os.close(end_in)

    def look(self) -> None:
        """Pass on its output, hear its closing message, collect its status."""
        self.relay.pump()
        self._hear()
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                self._hear()
                self.relay.finish()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self.end_file, 65536)
            self._said += data
            self.is_mute = not data

    def kill(self) -> None:
        """End it and collect it."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self.relay.finish()

    @property
    def is_over(self) -> bool:
        return self.status is not None or self.said is not None

    @property
    def said(self) -> Said | None:
        """Its closing message; None where it has not said it."""
        return Said.read(self._said) if self._said.endswith(b"\n") else None

    @property
    def failure(self) -> Failure | None:
        """How it failed, if it has."""
        if self.said is not None:
            end = self.said.end
            message = {**end.message(), "reason": f"rank {self.number}: {end.reason}"}
            return Failure(self.said.at, message, end.status) if end.is_failure else None
        if self.status is None:
            return None
        died = {"type": "end", "rank": self.number, "status": self.status, "last": self.relay.last_line}
        return Failure(0.0, died, self.status if self.status > 0 else 1)


@dataclass(frozen=True, slots=True)
class Said:
    """A rank's closing message: how it ended, when by the machine's monotonic clock, and what it has measured."""

    at: float
    end: End
    measured: Mapping[str, Any]

    def line(self) -> bytes:
        """As it goes through the pipe."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @staticmethod
    def read(line: bytes) -> Said:
        message = json.loads(line)
        return Said(message["at"], End(**message["end"]), message["measured"])


@dataclass(frozen=True, order=True, slots=True)
class Failure:
    """When a rank failed (0 where it died without a word, for which others can only be the consequence), the closing
    message for the slot, and the exit status.
    """

    at: float
    message: Mapping[str, Any] = field(compare=False)
    status: int = field(compare=False)


def launch(start: Start, processes: int, config_path: str, control_path: str) -> int:
    """Run all ranks to their end; returns the exit status. The first failure ends the others and is what is said."""
    environment = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    with connected(control_path) as connection:
        _send(connection, {"type": "hello", "pid": outer_pid()})
        ranks = [
            Rank(number, lambda place: start(config_path, control_path, place), environment)
            for number in range(processes)
        ]
        message, status = _follow(ranks)
        for rank in ranks:
            rank.kill()
        _send(connection, message)
    return status


def _follow(ranks: list[Rank]) -> tuple[Mapping[str, Any], int]:
    """The closing message and status of the first failure, or of the lead when all have come to their end."""
    deadline = math.inf
    while True:
        for rank in ranks:
            rank.look()
        are_all_over = all(rank.is_over for rank in ranks)
        failures = [rank.failure for rank in ranks if rank.failure is not None]
        if failures:
            deadline = min(deadline, time.monotonic() + CAUSE_S)
            first = min(failures)
            if are_all_over or first.at == 0 or time.monotonic() >= deadline:
                return first.message, first.status
        elif are_all_over:
            lead = ranks[0].said
            assert lead is not None  # else it would have failed
            return {**lead.end.message(), **lead.measured}, lead.end.status
        sources = [rank.relay.source for rank in ranks if not rank.relay.is_closed]
        ends = [rank.end_file for rank in ranks if not (rank.is_over or rank.is_mute)]
        select.select([*sources, *ends], [], [], LOOK_S)


def _send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")
