"""The command line as a process, on pipes and on a terminal; and jobs as a runner would have left them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from service.database import Database
from service.models import Job
from service.recorder import Recorder
from tests.service.support import PROBE, SPEC, add_job, confirmation, point, recipe, result, take
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome, Phase, RecipeDraft, StudyResult, TrialEnded, TrialStarted, Value
from x5tune.cli import main

COMMAND = [sys.executable, "-W", "error", "-m", "x5tune.cli"]
OURS = ("X5TUNE_", "XDG_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM", "_TYPER", "_X5TUNE")
HEALTH = {"grad_norm": 0.41, "update_ratio": 1.2e-3, "clip_share": 0.03, "loss_scaling": {"verdict": "use bf16"}}
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Run:
    """How one command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """Runs commands in `folder`, which is their X5TUNE_HOME too."""

    folder: Path
    variables: Mapping[str, str]
    is_inside: bool = False  # runs them in this process, which takes a tenth of the time

    def environment(self, **more: str) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        return {**own, "X5TUNE_HOME": str(self.folder), "TZ": "UTC", **self.variables, **more}

    def __call__(self, *arguments: str, stdin: str = "", **more: str) -> Run:
        return self._inside(arguments, more) if self.is_inside else self._as_process(arguments, stdin, more)

    def _inside(self, arguments: Sequence[str], more: Mapping[str, str]) -> Run:
        out, err = io.StringIO(), io.StringIO()
        own = mock.patch.dict(os.environ, self.environment(**more), clear=True)
        with own, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(arguments))
        return Run(code, out.getvalue(), err.getvalue())

    def _as_process(self, arguments: Sequence[str], stdin: str, more: Mapping[str, str]) -> Run:
        done = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin.encode(),
            capture_output=True,
            cwd=self.folder,
            env=self.environment(**more),
            timeout=60,
            check=False,
        )
        return Run(done.returncode, done.stdout.decode(), done.stderr.decode())

    @contextlib.contextmanager
    def running(self, *arguments: str, **more: str) -> Iterator[subprocess.Popen[str]]:
        """A command that goes on, its standard output in a pipe."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(**more),
        )
        with process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def on_terminal(self, *arguments: str, columns: int = 80, **more: str) -> Iterator[Terminal]:
        """A command on a terminal of this width."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=self.folder,
            env=self.environment(TERM="xterm-256color", **more),
            start_new_session=True,
        )
        os.close(theirs)
        with process:
            try:
                yield Terminal(process, ours)
            finally:
                process.kill()
                os.close(ours)


@dataclass
class Terminal:
    """What a command draws."""

    process: subprocess.Popen[bytes]
    descriptor: int
    raw: str = ""
    _rest: bytes = field(default=b"")

    @property
    def text(self) -> str:
        return ANSI.sub("", self.raw).replace("\r", "")

    def read_until(self, text: str, timeout_s: float = 20.0) -> str:
        deadline = time.monotonic() + timeout_s
        while text not in self.text:
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.text}"
            assert self._read(0.5), f"ended without {text!r}:\n{self.text}"
        return self.text

    def read_to_end(self, timeout_s: float = 20.0) -> int:
        """Everything until the command ends; its exit code."""
        deadline = time.monotonic() + timeout_s
        while self._read(0.5):
            assert time.monotonic() < deadline, self.text
        return self.process.wait(timeout_s)

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def _read(self, timeout_s: float) -> bool:
        """Read a little; False once the other side is closed."""
        ready, _, _ = select.select([self.descriptor], [], [], timeout_s)
        if not ready:
            return True
        try:
            found = os.read(self.descriptor, 65536)
        except OSError:  # what Linux says when the last process has closed the terminal
            return False
        self._rest += found
        text = self._rest.decode(errors="ignore")
        self.raw += text
        self._rest = b"" if text.encode() == self._rest else self._rest[len(text.encode()) :]
        return bool(found)


def claimed(database: Database, **columns: Any) -> Recorder:
    """A job in the hands of a runner."""
    add_job(database, **columns)
    claim = take(database)
    return Recorder(database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False)


def job_of(recorder: Recorder) -> str:
    return recorder._job_id


def run_trials(recorder: Recorder) -> None:
    """A baseline, a better trial, and one of each unhappy kind."""
    recorder.phase_started(Phase.SEARCH, 5)
    values = [0.5, 0.3, None, 0.9, None]
    outcomes = [Outcome.OK, Outcome.OK, Outcome.DIVERGED, Outcome.PRUNED, Outcome.CRASHED]
    reasons = [None, None, "val_loss at step 2 is inf", "behind the others", "ValueError: [red]no[/red] data"]
    for number, (value, outcome, reason) in enumerate(zip(values, outcomes, reasons, strict=True)):
        parameters = {"lr": 0.1 / (number + 1), "batch_size": 32, "weight_decay": 0.0}
        recorder.trial_started(TrialStarted(number, number == 0, parameters, {"micro_batch": 32}, seed=7))
        recorder.points_reported(number, [point(1, value or 1.0)])
        log = "Traceback\nValueError: [red]no[/red] data\n" if outcome is Outcome.CRASHED else ""
        recorder.trial_ended(TrialEnded(number, outcome, reason, Value.of(value), log, PROBE, health=HEALTH))


def confirm(recorder: Recorder) -> None:
    recorder.phase_started(Phase.CONFIRM, 4)
    for trial, seed in ((0, 1), (1, 1), (0, 2), (1, 2)):
        recorder.confirmation_ended(confirmation(trial, seed, 0.5 if trial == 0 else 0.3))


def finished_job(database: Database, outcome: StudyResult | None = None, **columns: Any) -> str:
    """A job that a runner has worked through; without `outcome` it recommends trial 1, proven."""
    recorder = claimed(database, **columns)
    run_trials(recorder)
    confirm(recorder)
    recorder.finish(outcome or result(diagnosis=[], recipes=[recipe(1)]))
    return job_of(recorder)


def provisional() -> RecipeDraft:
    return RecipeDraft(1, 1, "provisional", {"lr": 0.05, "batch_size": 32}, {"micro_batch": 32}, "cpu", 0.3)


def add_named_job(database: Database, job_id: str, name: str = "a job") -> None:
    with database.write() as session:
        from service.store import jobs
        from tuner.spec import resolve

        resolved = resolve(SPEC).job.to_json()
        jobs.create(
            session, Job(id=job_id, name=name, workload="quadratic", spec=dict(SPEC), resolved=resolved, total=4)
        )
