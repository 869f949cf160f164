"""Looking at a machine, one question at a time: each check runs alone, for a bounded time, and costs no other.

A check runs in a forked child of its own, because what it looks at may hang in the kernel (a dead network mount, a
GPU's driver) or take its process down (a broken torch); neither can be undone within one interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import NoReturn

MIB, GIB = 1 << 20, 1 << 30


class Level(StrEnum):
    """`problem`: jobs cannot run here, or not safely, before it is put right. `warning`: they can, with less."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `action` says what to do, None where there is nothing to do."""

    level: Level
    found: str
    action: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A question about this machine. `look` runs in a child process and may raise, hang or crash."""

    name: str
    look: Callable[[], Finding]


def ok(found: str, action: str | None = None) -> Finding:
    return Finding(Level.OK, found, action)


def warning(found: str, action: str) -> Finding:
    return Finding(Level.WARNING, found, action)


def problem(found: str, action: str) -> Finding:
    return Finding(Level.PROBLEM, found, action)


def examine(checks: Iterable[Check], timeout_s: float) -> list[tuple[str, Finding]]:
    """Run the checks side by side, `timeout_s` at most; what each found, in the order given.

    The calling process must have one thread: it is forked.
    """
    started = [_Running(check) for check in checks]
    deadline = time.monotonic() + timeout_s
    try:
        while any(each.is_open for each in started):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            ready, _, _ = select.select([each.pipe for each in started if each.is_open], [], [], left_s)
            for each in started:
                if each.pipe in ready:
                    each.read()
        return [(each.check.name, each.finding(timeout_s)) for each in started]
    finally:
        for each in started:
            each.end()


class _Running:
    """A check in its child process, which writes its finding to a pipe."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self.is_open = True
        self._answer = b""
        sys.stdout.flush()
        sys.stderr.flush()
        self.pipe, theirs = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self.pipe)
            _answer(check, theirs)
        os.close(theirs)

    def read(self) -> None:
        part = os.read(self.pipe, 1 << 16)
        self._answer += part
        self.is_open = bool(part)

    def finding(self, timeout_s: float) -> Finding:
        if self._answer.endswith(b"\n"):
            answer = json.loads(self._answer)
            return Finding(Level(answer["level"]), answer["found"], answer["action"])
        if self.is_open:
            return problem(
                f"no answer within {timeout_s:g} s",
                "Look for what hangs (a network mount, a device, a busy machine), or allow more with --timeout.",
            )
        status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        self._pid = 0
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        return problem(f"the check took its process down ({how})", "What it looks at is broken: install it again.")

    def end(self) -> None:
        """Leave nothing behind; a child that hangs in the kernel is killed when it comes out of there."""
        os.close(self.pipe)
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        for _ in range(50):
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)


def _answer(check: Check, pipe: int) -> NoReturn:
    """Look, and write the finding; in the child, which never returns into its parent's code."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):  # libraries talk as they are imported
            os.dup2(nowhere, number)
        try:
            finding = check.look()
        except Exception as error:  # whatever it is, it is what was found
            finding = problem(reason(error), "Put this right, then run `x5tune doctor` again.")
        with os.fdopen(pipe, "w") as file:
            file.write(json.dumps(asdict(finding)) + "\n")
    finally:
        os._exit(0)


def reason(error: BaseException) -> str:
    """An error in one line: the kind where the text alone does not say it."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
