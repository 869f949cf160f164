"""The warm parent: a clean interpreter that has imported the workload and forks one child for each probe.

Run by its path (`python -P warm_parent.py FD`), never imported by the tuner: the user's code lives in this interpreter
and must not meet our packages unless it is one of our built-in workloads. Standard library only until `load`.

FD is a stream socket to the slot. Requests and events are JSON lines; the descriptor of the output pipe travels beside
a `run` request. Requests: `load {workload | target, folder, metric | nothing; processes}` (a built-in, a function or a
class of the user's, a command), `run {config, control, report, run_dir, environment, argv?}`, `signal {number}`.
Events: `ready {seconds}`, `failed {reason, traceback}`, `forked {pid, fresh}`, `exited {status,
peak_memory_bytes, cpu_seconds}`.

It also sweeps: when a probe has ended nothing that it started survives, `setsid` or not. As init of a PID namespace
that holds for its own death too; else (as subreaper) its death takes the probe along, but not what the probe started.
Not protected: a probe that writes outside its folder, or uses up the disk.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[[str, str], int]  # config path, control path
EXIT_GRACE_S = 2.0

_added: list[str] = []  # entries of the import path that only we need


class Parent:
    """The loop of the warm parent; one probe at a time."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._buffer = b""
        self._pending_fds: list[int] = []
        self._run_workload: Run | None = None
        self._spec: dict[str, Any] = {}
        self._child: int | None = None
        self._pidfd: int | None = None
        self._is_init = os.getpid() == 1

    def serve(self) -> None:
        """Answer requests until the slot closes its end."""
        while True:
            for request in self._receive():
                if request["op"] == "load":
                    self._load(request)
                elif request["op"] == "run":
                    self._run(request, self._pending_fds.pop(0))
                elif request["op"] == "signal":
                    self._signal(request["number"])

    def _receive(self) -> list[dict[str, Any]]:
        """Wait for requests, reaping meanwhile; leaves the process when the slot is gone."""
        while True:
            if self._child is None:
                self._reap_strangers()
            sources: list[Any] = [self._control] if self._pidfd is None else [self._control, self._pidfd]
            readable, _, _ = select.select(sources, [], [], self._tick())
            self._reap()
            if self._control not in readable:
                continue
            data, fds, _, _ = socket.recv_fds(self._control, 65536, 8)
            self._pending_fds.extend(fds)
            if not data:
                self._signal(signal.SIGKILL)
                self._sweep()
                os._exit(0)
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            if lines:
                return [json.loads(line) for line in lines]

    def _tick(self) -> float:
        return 0.004 if self._child is not None and self._pidfd is None else 5.0

    def _emit(self, event: str, **fields: Any) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(json.dumps({"event": event, **fields}).encode() + b"\n")

    def _load(self, request: dict[str, Any]) -> None:
        started = time.monotonic()
        self._spec = request
        try:
            self._run_workload = open_workload(request)
        except BaseException as error:
            self._emit("failed", reason=f"{type(error).__name__}: {error}", traceback=users_traceback(error))
            return
        self._emit("ready", seconds=time.monotonic() - started, fork=can_fork())

    def _run(self, request: dict[str, Any], output: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        fresh = not can_fork()
        if fresh:
            self._child = self._spawn_fresh(request, output)
        else:
            pid = os.fork()
            if pid == 0:
                self._control.close()
                os._exit(run_child(request, output, self._run_workload))
            self._child = pid
        os.close(output)
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self._child)
        self._emit("forked", fresh=fresh)

    def _spawn_fresh(self, request: dict[str, Any], output: int) -> int:
        """The same probe in a new interpreter, for a workload that forking would break."""
        shown = {name: value for name, value in request.items() if name != "environment"}  # `ps` shows it to everybody
        order = json.dumps({"load": self._spec, "run": shown})
        environment = {**os.environ, **request.get("environment", {})}
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, "--once", order, str(output)],
            pass_fds=[output],
            stdin=subprocess.DEVNULL,
            env=environment,
        )
        process.returncode = 0  # reaped here by pid, not by Popen
        return process.pid

    def _signal(self, number: int) -> None:
        """Signal the probe's process group, or the probe itself before it has made one."""
        if self._child is not None:
            try:
                os.killpg(self._child, number)
            except ProcessLookupError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._child, number)

    def _reap(self) -> None:
        if self._child is None:
            return
        pid, status, usage = os.wait4(self._child, os.WNOHANG)
        if pid == 0:
            return
        self._signal(signal.SIGKILL)  # what is left of its process group
        self._child = None
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
        self._sweep()
        scale = 1 if sys.platform == "darwin" else 1024
        code = os.waitstatus_to_exitcode(status)
        cpu_s = usage.ru_utime + usage.ru_stime
        self._emit("exited", status=code, peak_memory_bytes=usage.ru_maxrss * scale, cpu_seconds=cpu_s)

    def _reap_strangers(self) -> bool:
        """Collect orphans that were handed to us as init or subreaper; whether some are still alive."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _sweep(self) -> None:
        """End everything that the probe left behind, and wait until it is gone."""
        deadline = time.monotonic() + EXIT_GRACE_S
        while self._reap_strangers() and time.monotonic() < deadline:
            if self._is_init:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            else:
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)


def descendants(root: int) -> list[int]:
    """Pids of all living descendants of `root`, from /proc; empty where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    found: list[int] = []
    frontier = {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found.extend(frontier)
    return found


def become_subreaper() -> None:
    """Orphaned grandchildren come to us instead of to init (Linux; a no-op elsewhere)."""
    prctl(36, 1)


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that has started it dies (Linux; a no-op elsewhere)."""
    prctl(1, int(signal.SIGKILL))


def prctl(option: int, value: int) -> None:
    """The system call, where there is one."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def can_fork() -> bool:
    """Whether a fork of this process is safe: Linux, one task, CUDA not initialised.

    Counts kernel tasks, because `threading.active_count()` does not see an OpenMP pool, whose absence in the child
    makes the next parallel region hang.
    """
    if sys.platform != "linux" or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - no pathlib in the hot path
        return False
    torch = sys.modules.get("torch")
    return torch is None or not torch.cuda.is_initialized()


def open_workload(request: dict[str, Any]) -> Run | None:
    """Import what the probes will run, and say how; None for a command. `path` holds folders that ours are found in."""
    if "workload" not in request and "target" not in request:
        return None
    if processes_of(request) == 1:
        run = ours(request, "workloads.child").run
        return functools.partial(run, import_workload(request))
    launch = ours(request, "workloads.launcher").launch
    run_rank = open_rank(request)
    return functools.partial(launch, functools.partial(fork_rank, run_rank), processes_of(request))


def open_rank(request: dict[str, Any]) -> Callable[[str, str, int], int]:
    """Import what the ranks of the probes will run: config path, control path, the descriptor for its end."""
    ours(request, "workloads.open").preload()
    run_rank = ours(request, "workloads.ranks").run_rank
    return functools.partial(run_rank, import_workload(request))


def import_workload(request: dict[str, Any]) -> Any:
    """The built-in, or what wraps the user's function or class; the user's modules come before ours from then on."""
    if "workload" in request:
        return ours(request, "workloads.open").open_workload(request["workload"])
    open_target = ours(request, "workloads.user").open_target
    return open_target(request["target"], request["folder"], request["metric"], processes_of(request), _added)


def ours(request: dict[str, Any], name: str) -> Any:
    """A module of ours, from the end of the import path."""
    _added.extend(folder for folder in request.get("path", []) if folder not in sys.path)
    sys.path.extend(folder for folder in _added if folder not in sys.path)
    return importlib.import_module(name)


def processes_of(request: dict[str, Any]) -> int:
    return int(request.get("processes", 1))


def fork_rank(run_rank: Callable[[str, str, int], int], config: str, control: str, place: Any) -> int:
    """Start a rank (`workloads.launcher.Start`) as a fork of this process; returns its pid."""
    pid = os.fork()
    if pid == 0:
        os._exit(run_forked_rank(functools.partial(run_rank, config, control, place.end), place))
    return pid


def run_forked_rank(run: Callable[[], int], place: Any) -> int:
    """Everything that a forked rank does; returns its exit status."""
    try:
        die_with_parent()
        os.dup2(place.output, 1)
        os.dup2(place.output, 2)
        os.environ.update(place.environment)
        return run()
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def spawn_rank(load: dict[str, Any], config: str, control: str, place: Any) -> int:
    """Start a rank in a new interpreter, for a workload that forking would break; returns its pid."""
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, "--rank", json.dumps(load), config, control, str(place.end)],
        pass_fds=[place.end],
        stdin=subprocess.DEVNULL,
        stdout=place.output,
        stderr=place.output,
        env={**os.environ, **place.environment},
    )
    process.returncode = 0  # reaped by pid, not by Popen
    return process.pid


def open_fresh(load: dict[str, Any]) -> Run | None:
    """As `open_workload`, in an interpreter of its own; of several processes each rank imports the workload itself."""
    if processes_of(load) == 1 or not ("workload" in load or "target" in load):
        return open_workload(load)
    launch = ours(load, "workloads.launcher").launch
    return functools.partial(launch, functools.partial(spawn_rank, load), processes_of(load))


def users_traceback(error: BaseException) -> str:
    """The traceback of a failed import from the first frame that is neither ours nor the import system's."""
    ours = (__file__, str(Path(__file__).parents[1] / "workloads"), "<frozen importlib")
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(ours):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def run_child(request: dict[str, Any], output: int, run: Run | None) -> int:
    """Everything that a probe does between its birth and its exit status; does not return from a command."""
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    limit_memory(request.get("memory_bytes"), is_command=run is None)
    os.environ.update(request.get("environment", {}))
    os.environ["X5TUNE_CONFIG"] = request["config"]
    os.environ["X5TUNE_CONTROL"] = request["control"]
    os.environ["X5TUNE_REPORT"] = request["report"]
    os.environ["PET_LOG_DIR"] = str(Path(request["config"]).parent)  # torchrun's: by itself it litters TMPDIR
    os.environ["X5TUNE_RUN_DIR"] = request["run_dir"]
    try:
        if request.get("folder"):
            os.chdir(request["folder"])
        if run is None:
            return run_command(request["argv"])
        return run(request["config"], request["control"])
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()


def limit_memory(memory_bytes: int | None, *, is_command: bool) -> None:
    """Have the kernel refuse this process more data than it has now and `memory_bytes` on top.

    A command starts from nothing. What the probe starts inherits the limit, each process for itself; memory that is
    shared or that maps a file is not counted.
    """
    if memory_bytes is None:
        return
    held = 0 if is_command else data_bytes()
    resource.setrlimit(resource.RLIMIT_DATA, (held + memory_bytes, held + memory_bytes))


def data_bytes() -> int:
    """What the kernel counts as this process's data; 0 where /proc does not say."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmData:")).split()[1]) * 1024
    return 0


def run_command(argv: list[str]) -> int:
    """Become the user's command; returns only when that cannot be, with what a shell would return."""
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is the point
    except OSError as error:
        sys.stderr.write(f"x5tune: cannot run {argv[0]!r}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def main() -> None:
    if sys.argv[1] == "--once":
        order = json.loads(sys.argv[2])
        os._exit(run_child(order["run"], int(sys.argv[3]), open_fresh(order["load"])))
    if sys.argv[1] == "--rank":
        die_with_parent()
        run_rank, (config, control, end) = open_rank(json.loads(sys.argv[2])), sys.argv[3:6]
        os._exit(run_rank(config, control, int(end)))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the slot ends us by closing the socket, or by KILL
    become_subreaper()
    Parent(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
