"""Running probes from a slot: the warm parent, one child at a time, its reports, its output, its end.

No threads and no Ray: `ProbeHost.wait` multiplexes everything, always with a bound. Everything is observed from outside
the PID namespace that the probe may live in.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tuner.errors import TunerError
from tuner.memory_sampler import children_of
from tuner.metric_files import Follower
from tuner.output import OutputTail
from tuner.probe_lines import OutputPattern, ReportFile, parsed

START_TIMEOUT_S = 120.0
TERM_GRACE_S = 2.0
SEND_TIMEOUT_S = 10.0
MAX_LINE_BYTES = 16 << 20  # of one report
MAX_CONNECTIONS = 16
KILLED_STATUS = 128  # and the signal's number, as a shell and `unshare` say it
MAX_HEALTH = 100  # names, and characters of one
MAX_HEALTH_CHARS = 4000
REPORT_FILE_POLL_S = 0.04
DRAIN_S = 0.25  # a pattern may take long over each piece of output
PASSED_ON = ("PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME")
PASSED_ON_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_")


class ProbeStartError(TunerError):
    """The warm parent could not import the workload; `traceback` has what the interpreter said, whole."""

    def __init__(self, reason: str, traceback: str = "") -> None:
        super().__init__(reason)
        self.traceback = traceback


class ParentDiedError(ProbeStartError):
    """The warm parent ended without a word: killed from outside, or by what it imported.

    `has_exited`: by its own will, so that it would do so again. `unshare`, whose child was killed, says so and exits
    with 1: it may not send itself the same signal.
    """

    def __init__(self, status: int | None, said: str) -> None:
        super().__init__(f"the warm parent ended (status {status}){f': {said}' if said else ''}")
        was_killed = status == 1 and any(line.startswith("unshare: ") for line in said.splitlines())
        self.has_exited = status is not None and 0 <= status < KILLED_STATUS and not was_killed


@dataclass(frozen=True, slots=True)
class Report:
    """A raw report of the running probe, which now waits for `answer`."""

    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Exited:
    """The probe has ended and nothing of it is left. `said` is its own closing message, if it got that far.

    `stage` is what a probe that measures memory was about last.
    """

    status: int | None
    seconds: float
    peak_memory_bytes: int | None
    pid: int | None
    said: Mapping[str, Any] | None
    output: str
    cpu_seconds: float | None = None
    stage: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """What a probe is started with besides its configuration: for the user's own code, all optional.

    `argv` is a command with its placeholders filled in, `folder` the working directory, `pattern` reads reports from
    the output, `file` from what the script writes. `memory_bytes` is what the probe may add to its interpreter.
    """

    argv: Sequence[str] | None = None
    folder: str | None = None
    pattern: OutputPattern | None = None
    memory_bytes: int | None = None
    file: Follower | None = None


@dataclass(eq=False)
class _Line:
    """One connection to the control socket, with what has come in of an unfinished line."""

    connection: socket.socket
    received: bytes = b""


@dataclass
class _Running:
    started_at: float
    directory: Path
    files: Sequence[Follower]
    pattern: OutputPattern | None
    output: OutputTail = field(default_factory=OutputTail)
    output_fd: int | None = None
    lines: list[_Line] = field(default_factory=list)
    reports: deque[tuple[_Line | None, Mapping[str, Any]]] = field(default_factory=deque)
    asking: _Line | None = None
    pid: int | None = None
    said: Mapping[str, Any] | None = None
    stage: str | None = None
    notes: dict[str, str] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    exit: Mapping[str, Any] | None = None


class ProbeHost:
    """One slot's warm parent and the probe that runs in it, if any.

    `workload` is what the parent is to load: `{workload: NAME}`, `{target, folder}`, or nothing for a command. `folder`
    is a short private directory (socket paths end at 107 bytes); it is removed by `close`.
    """

    def __init__(self, workload: Mapping[str, Any], folder: Path, environment: Mapping[str, str], cpus: float) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)  # of a killed process that had our pid
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._selector = selectors.DefaultSelector()
        self._running: _Running | None = None
        self._is_broken = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._control_path = str(self._folder / "c")
        self._listener.bind(self._control_path)
        self._listener.listen(8)
        self._listener.setblocking(False)
        self._parent_buffer = b""
        ours, theirs = socket.socketpair()
        self._parent_socket = ours
        command = [*isolation_prefix(), sys.executable, "-P", str(Path(__file__).with_name("warm_parent.py"))]
        self._log = (self._folder / "parent.log").open("wb")
        self._parent = subprocess.Popen(
            [*command, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**probe_environment(os.environ, cpus), **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            cwd=self._folder,
            start_new_session=True,
        )
        theirs.close()
        self._send({"op": "load", **workload, "path": [str(Path(__file__).resolve().parents[1])]})
        self._ready = False
        self._start_deadline = time.monotonic() + START_TIMEOUT_S

    def ensure_ready(self, timeout_s: float = START_TIMEOUT_S) -> bool:
        """Whether the workload is imported, after waiting for it for at most `timeout_s`.

        Raises ProbeStartError with what went wrong, or when the import takes longer than START_TIMEOUT_S altogether;
        the warm parent is of no use any more then.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready:
            self._parent_socket.settimeout(max(0.01, min(deadline, self._start_deadline) - time.monotonic()))
            try:
                events = self._read_parent()
            except TimeoutError:
                if time.monotonic() < self._start_deadline:
                    return False
                self._is_broken = True
                raise ProbeStartError(f"the workload was not imported within {START_TIMEOUT_S:.0f} s") from None
            for event in events:
                if event["event"] == "failed":
                    self._is_broken = True
                    raise ProbeStartError(event["reason"], event["traceback"])
                if event["event"] == "ready":
                    self._ready = True
                    self._parent_socket.settimeout(SEND_TIMEOUT_S)
                    self._selector.register(self._parent_socket, selectors.EVENT_READ, "parent")
                    self._selector.register(self._listener, selectors.EVENT_READ, "listener")
        return True

    @property
    def elapsed_s(self) -> float:
        """Wall seconds since the running probe was started."""
        return time.monotonic() - self._running.started_at if self._running else 0.0

    @property
    def is_alive(self) -> bool:
        """Whether the warm parent can take another probe."""
        return self._parent.poll() is None and not self._is_broken

    @property
    def warm_pid(self) -> int:
        """The warm parent itself, which is a child of what we started where it has a PID namespace of its own."""
        below = children_of(self._parent.pid) if isolation_prefix() else []
        return below[0] if below else self._parent.pid

    @property
    def pid(self) -> int | None:
        """The running probe's pid as seen from outside any PID namespace, once it has said hello."""
        return self._running.pid if self._running else None

    @property
    def has_said_goodbye(self) -> bool:
        """Whether the running probe has said how it ended; it may take a while to leave, or need to be made to."""
        return self._running is not None and self._running.said is not None

    @property
    def run_dir(self) -> Path:
        """The folder that the next probe may call its own; it is empty as that starts and goes as that ends."""
        return self._folder / "p" / "run"

    def run_dir_bytes(self) -> int:
        """What the probe's own folder takes up on the disk."""
        total = 0
        if self.run_dir.is_symlink():  # its own doing, and the walk would lead anywhere
            return total
        for root, _, names in os.walk(self.run_dir):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118 - a hot path
        return total

    def output_text(self) -> str:
        """What the running probe has printed so far, head and tail."""
        return self._running.output.text() if self._running else ""

    @property
    def notes(self) -> Mapping[str, str]:
        """What the running probe has remarked so far, by name."""
        return dict(self._running.notes) if self._running else {}

    @property
    def health(self) -> Mapping[str, Any]:
        """What the running probe has told of its health so far, beside its reports."""
        return dict(self._running.health) if self._running else {}

    def start(
        self, config: Mapping[str, Any], environment: Mapping[str, str], order: ProbeOrder = ProbeOrder()
    ) -> None:
        """Fork a probe on `config`, the content of its X5TUNE_CONFIG."""
        if self._running:
            raise RuntimeError("a probe is already running in this slot")
        self.ensure_ready()
        self._hang_up_strangers()
        directory = self._folder / "p"
        shutil.rmtree(directory, ignore_errors=True)
        self.run_dir.mkdir(parents=True)
        config_path = directory / "config.json"
        config_path.write_text(json.dumps(config), encoding="utf-8")
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        report_path = directory / "report.jsonl"
        files = [ReportFile(report_path), *([order.file] if order.file else [])]
        self._running = _Running(time.monotonic(), directory, files, order.pattern, output_fd=read_end)
        self._selector.register(read_end, selectors.EVENT_READ, "output")
        request = {
            "op": "run",
            "config": str(config_path),
            "control": self._control_path,
            "report": str(report_path),
            "run_dir": str(self.run_dir),
            "environment": dict(environment),
            "folder": order.folder,
            "argv": list(order.argv or ()),
            "memory_bytes": order.memory_bytes,
        }
        self._send(request, [write_end])
        os.close(write_end)

    def wait(self, timeout_s: float) -> Report | Exited | None:
        """The next report, or the end of the probe, or None after `timeout_s`."""
        deadline, has_looked = time.monotonic() + timeout_s, False
        while self._running:
            if self._running.exit is not None and not self._running.reports:
                self._read_rest(self._running)
            if self._running.reports:
                self._running.asking, message = self._running.reports.popleft()
                return Report(message)
            if self._running.exit is not None:
                return self._finish(self._running.exit)
            if time.monotonic() >= deadline and has_looked:
                return None
            has_looked = True
            ready = self._selector.select(max(0.0, min(deadline - time.monotonic(), REPORT_FILE_POLL_S)))
            for key, _ in ready:
                self._handle(key.data)
            self._read_files(self._running)
        return None

    def answer(self, decision: Literal["continue", "pause", "stop"], reason: str = "") -> None:
        """Let the waiting probe go on, or tell it to end; of one told to pause `has_said_goodbye` comes true."""
        running = self._running
        if running is None or running.asking is None:
            return
        with contextlib.suppress(OSError):
            running.asking.connection.sendall(json.dumps({"go": decision, "reason": reason}).encode() + b"\n")
        running.asking = None

    def end(self, reason: str, grace_s: float = TERM_GRACE_S) -> Exited | None:
        """End the running probe, if any; returns when it is gone.

        One that waits for an answer is asked; then TERM, then KILL, each after `grace_s`.
        """
        if not self._running:
            return None
        is_asking = self._running.asking is not None
        self.answer("stop", reason)
        for number in (None, signal.SIGTERM, signal.SIGKILL) if is_asking else (signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                self._send({"op": "signal", "number": int(number)})
            deadline = time.monotonic() + grace_s
            while time.monotonic() < deadline:
                event = self.wait(deadline - time.monotonic())
                if isinstance(event, Exited):
                    return event
                if isinstance(event, Report):
                    self.answer("stop", reason)
        return self._abandon()

    def close(self) -> None:
        """End the probe and the warm parent, and remove the folder."""
        self.end("the slot is closing")
        self._parent_socket.close()
        try:
            self._parent.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            self._parent.kill()
            self._parent.wait()
        self._listener.close()
        self._selector.close()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def parent_log(self) -> str:
        """What the warm parent itself has printed (imports of the workload)."""
        with contextlib.suppress(OSError):
            return (self._folder / "parent.log").read_text(errors="replace")[-4000:]
        return ""

    def _send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        data = json.dumps(message).encode() + b"\n"
        try:
            if fds:
                socket.send_fds(self._parent_socket, [data[:1]], list(fds))
                data = data[1:]  # send_fds may cut a long message short, sendall does not
            self._parent_socket.sendall(data)
        except OSError:
            self._parent_gone()

    def _read_parent(self) -> list[dict[str, Any]]:
        try:
            data = self._parent_socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self._parent_gone()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._parent.wait(1.0)
            raise ParentDiedError(self._parent.poll(), self.parent_log().strip())
        *lines, self._parent_buffer = (self._parent_buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _parent_gone(self) -> None:
        self._is_broken = True
        if self._running and self._running.exit is None:
            self._running.exit = {"status": None}

    def _handle(self, source: str | _Line) -> None:
        running = self._running
        assert running is not None
        if source == "parent":
            try:
                for event in self._read_parent():
                    if event["event"] == "exited":
                        running.exit = event
            except ProbeStartError:
                self._parent_gone()
        elif source == "output":
            self._drain(running, DRAIN_S)
        elif source == "listener":
            self._accept(running)
        elif isinstance(source, _Line):
            self._read_line(running, source)

    def _read_files(self, running: _Running, *, is_over: bool = False) -> None:
        for file in running.files:
            running.reports.extend((None, message) for message in file.read(is_over=is_over))

    def _drain(self, running: _Running, within_s: float = math.inf) -> None:
        if running.output_fd is None:
            return
        until = time.monotonic() + within_s
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):  # bounded, so that a flood cannot keep us here
                data = os.read(running.output_fd, 65536)
                if not data:
                    self._selector.unregister(running.output_fd)
                    os.close(running.output_fd)
                    running.output_fd = None
                    return
                running.output.write(data)
                if running.pattern is not None:
                    running.reports.extend((None, message) for message in running.pattern.feed(data))
                if time.monotonic() > until:
                    return

    def _accept(self, running: _Running) -> None:
        with contextlib.suppress(BlockingIOError):
            connection, _ = self._listener.accept()
            if len(running.lines) >= MAX_CONNECTIONS:
                connection.close()
                return
            connection.setblocking(False)
            line = _Line(connection)
            running.lines.append(line)
            self._selector.register(connection, selectors.EVENT_READ, line)

    def _hang_up_strangers(self) -> None:
        """Close what an earlier probe left in the queue of connections: it must not pass for the next one."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()

    def _read_rest(self, running: _Running) -> None:
        """Take in what a probe has said that is gone now."""
        self._accept(running)
        for line in list(running.lines):
            for _ in range(64):  # bounded, should somebody still write
                if not self._read_line(running, line):
                    break
        self._drain(running)
        self._read_files(running, is_over=True)
        if running.pattern is not None:
            running.reports.extend((None, message) for message in running.pattern.flush())

    def _read_line(self, running: _Running, line: _Line) -> bool:  # noqa: PLR0912 - a branch for each kind of message
        """Take in what has come over one connection; False when there was nothing."""
        if line not in running.lines:
            return False
        try:
            data = line.connection.recv(1 << 20)
        except BlockingIOError:
            return False
        except ConnectionError:
            data = b""
        if not data:
            self._hang_up(running, line)
            return False
        *texts, line.received = (line.received + data).split(b"\n")
        if len(line.received) > MAX_LINE_BYTES:
            line.received = b""
            texts.append(b"")
        for text in texts:
            message = parsed(text)
            if message.get("type") == "hello":
                if running.pid is None and isinstance(message.get("pid"), int):  # the first one is the probe itself
                    running.pid = message["pid"]
            elif message.get("type") == "end":
                running.said = earlier_end(running.said, message)
            elif message.get("type") == "note":
                running.notes[str(message.get("name"))[:100]] = str(message.get("text"))[:1000]
            elif message.get("type") == "health":
                keep_health(running.health, message.get("values"))
            elif message.get("type") == "stage":
                running.stage = str(message.get("stage"))
            elif running.said is None:
                running.reports.append((line, message))
        return True

    def _hang_up(self, running: _Running, line: _Line) -> None:
        self._selector.unregister(line.connection)
        line.connection.close()
        running.lines.remove(line)
        if running.asking is line:
            running.asking = None

    def _finish(self, exited: Mapping[str, Any]) -> Exited:
        running = self._running
        assert running is not None
        self._drain(running)
        if running.output_fd is not None:
            self._selector.unregister(running.output_fd)
            os.close(running.output_fd)
        for line in list(running.lines):
            self._hang_up(running, line)
        shutil.rmtree(running.directory, ignore_errors=True)
        self._running = None
        return Exited(
            status=exited["status"],
            seconds=time.monotonic() - running.started_at,
            peak_memory_bytes=exited.get("peak_memory_bytes"),
            cpu_seconds=exited.get("cpu_seconds"),
            pid=running.pid,
            said=running.said,
            output=running.output.text(),
            stage=running.stage,
            notes=running.notes,
            health=running.health,
        )

    def _abandon(self) -> Exited:
        """Even KILL had no effect in time (uninterruptible I/O): take the whole parent down."""
        self._is_broken = True
        self._parent.kill()
        return self._finish({"status": None})


def keep_health(health: dict[str, Any], values: object) -> None:
    """Take in what a probe tells of its health: JSON values by name, neither many nor large."""
    if not isinstance(values, Mapping):
        return
    for name, value in values.items():
        is_known = name in health or len(health) < MAX_HEALTH
        if is_known and len(name) <= MAX_HEALTH and len(json.dumps(value)) <= MAX_HEALTH_CHARS:
            health[name] = value


def earlier_end(said: Mapping[str, Any] | None, message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of two closing messages the cause: when one rank fails the others fail for want of it. `at` is when it began."""
    at, before = message.get("at"), said and said.get("at")
    if said is None or (isinstance(at, int | float) and isinstance(before, int | float) and at < before):
        return message
    return said


def probe_environment(outer: Mapping[str, str], cpus: float) -> dict[str, str]:
    """What a probe's interpreter sees of our environment: an allow-list, so no database URL and no token.

    Where no virtual environment is active, `python` in a command is the interpreter that we run in.
    """
    kept = {name: v for name, v in outer.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)}
    if not any(outer.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX")):
        kept["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), outer.get("PATH", os.defpath)))
    threads = str(max(1, int(cpus)))
    fixed = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": threads}
    data = {"X5TUNE_DATA": outer["X5TUNE_DATA"]} if "X5TUNE_DATA" in outer else {}
    return {**kept, **fixed, **data, "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0"}


@functools.cache
def isolation_prefix() -> tuple[str, ...]:
    """The command that makes the warm parent init of a PID namespace, empty where the kernel refuses."""
    prefix = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child=KILL")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if subprocess.run([*prefix, "true"], capture_output=True, timeout=5, check=False).returncode == 0:
            return prefix
    return ()
