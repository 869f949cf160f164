"""`serve`: one command that brings up everything, keeps it up, and takes it all down again.

Children end with this process even when it is killed: each watches its standard input, whose other end we hold.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from service import migrate
from service.allowed import require_meant
from service.api_process import listen
from service.children import adopt_orphans, end_orphans, import_path
from service.database import Database
from service.errors import AlreadyServingError, StartError
from service.settings import Settings
from service.store import tokens
from tuner.cluster import runtime_folder

START_S = 60.0
GRACE_S = 35.0
POLL_S = 0.1
SWEEP_S = 5.0
HEALTHY_S = 30.0
MAX_PAUSE_S = 30.0
TOKEN_NAME = "this machine (client.json)"  # noqa: S105 - the name, not the secret


@dataclass
class Child:
    """One supervised process: started, looked at, started again with a growing pause when it dies."""

    name: str
    arguments: list[str]
    environment: dict[str, str]
    folder: Path
    inherited: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    _failures: int = 0
    _started_at: float = field(default=0.0)
    _restart_at: float = field(default=0.0)

    def start(self) -> None:
        self._started_at = time.monotonic()
        # Standard output stays for the one line that says where the service is; what children say goes to stderr.
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", *self.arguments, "--watch-stdin"],
            cwd=self.folder,  # not the user's, whose own packages may have our names
            stdin=subprocess.PIPE,
            stdout=sys.stderr.fileno() if _has_fileno(sys.stderr) else subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            pass_fds=self.inherited,
            start_new_session=True,
        )

    def look(self) -> None:
        """Notice a death, and start again when the pause is over."""
        now = time.monotonic()
        if self.process is None:
            if now >= self._restart_at:
                self.start()
            return
        status = self.process.poll()
        if status is None:
            return
        self._failures = 0 if now - self._started_at >= HEALTHY_S else self._failures + 1
        pause_s = restart_pause_s(self._failures)
        sys.stderr.write(f"x5tune: the {self.name} ended ({_status(status)}); it starts again in {pause_s:g} s\n")
        self._sweep()
        self._close_stdin()
        self.process = None
        self._restart_at = now + pause_s

    def terminate(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self, deadline: float) -> None:
        """Until it has ended; past the deadline by force, with its whole group."""
        if self.process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))
        self._sweep()
        self.process.wait()
        self._close_stdin()

    def _sweep(self) -> None:
        """Kill what is left of the child's process group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _close_stdin(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()


def restart_pause_s(failures: int) -> float:
    """How long to wait before the next start, after so many quick deaths in a row."""
    return min(MAX_PAUSE_S, 0.2 if failures == 0 else 0.5 * 2.0 ** (failures - 1))


def serve(settings: Settings, runner: bool = True, *, say: Callable[[str], None] | None = None) -> None:
    """Run the service until TERM or INT. Raises a `ServiceError` that says what to do when it cannot start.

    `say` (standard output when None) gets one line with the address once the API answers.
    """
    require_meant(settings)
    if runner:
        _require_worker()
    settings.prepare_home()
    with _only_one(settings.home), contextlib.closing(listen(settings.host, settings.port)) as sock:
        url = _url(settings.host, sock.getsockname()[1])
        if settings.is_sqlite:
            migrate.upgrade(settings)
        else:
            migrate.require_current(settings)  # in production, when to migrate is the operator's to say
        write_client_file(settings, url)
        children = _children(settings, sock, runner=runner)
        stop = _StopFlag()
        with stop.installed():
            try:
                adopt_orphans()
                for child in children:
                    child.start()
                _wait_until_up(children[0], url, stop)
                if not stop.is_set:
                    (say or _say)(f"x5tune is ready at {url} (token in {settings.client_file})")
                swept_at = time.monotonic()
                while not stop.is_set:
                    for child in children:
                        child.look()
                    if time.monotonic() - swept_at >= SWEEP_S:
                        end_orphans(_pids(children))
                        swept_at = time.monotonic()
                    time.sleep(POLL_S)
            finally:
                _take_down(children)
                with contextlib.suppress(OSError):
                    runtime_folder()  # removes what a runner that had to be killed has left


def _require_worker() -> None:
    """Say what is missing for a runner before anything is started."""
    missing = [name for name in ("ray", "torch") if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"A runner needs {' and '.join(missing)}: pip install 'x5tune[worker]', or leave the runner out with "
            "`x5tune serve --no-runner`."
        )


def write_client_file(settings: Settings, url: str) -> None:
    """Leave `{url, token}` for the command line, readable by this user only; a token that still works is kept."""
    database = Database(settings.database_url)
    try:
        secret = _known_token(settings.client_file)
        with database.read() as session:
            known = None if secret is None else tokens.authenticate(session, secret)
        if secret is None or known is None or known.scope != "admin":
            with database.write() as session:
                _, secret = tokens.create(session, TOKEN_NAME, "admin")
    finally:
        database.close()
    temporary = settings.client_file.with_suffix(f".{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump({"url": url, "token": secret}, file, indent=2)
        file.write("\n")
    temporary.replace(settings.client_file)


def _known_token(path: Path) -> str | None:
    try:
        token = json.loads(path.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) else None


def _children(settings: Settings, sock: socket.socket, *, runner: bool) -> list[Child]:
    environment = settings.environment() | import_path()
    home, descriptor = settings.home, sock.fileno()
    api = Child("API", ["service.api_process", "--socket", str(descriptor)], environment, home, (descriptor,))
    return [api, Child("runner", ["service.runner"], environment, home)] if runner else [api]


@contextlib.contextmanager
def _only_one(home: Path) -> Iterator[None]:
    with (home / "serve.lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise AlreadyServingError(
                f"Another `x5tune serve` (process {holder}) runs on {home}. "
                "Stop it, or set X5TUNE_HOME to another folder."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class _StopFlag:
    """Set by TERM and INT while installed."""

    def __init__(self) -> None:
        self.is_set = False

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, _number: int, _frame: object) -> None:
        self.is_set = True


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()  # whoever waits for the line may be reading a pipe


def _wait_until_up(api: Child, url: str, stop: _StopFlag) -> None:
    deadline = time.monotonic() + START_S
    while not stop.is_set:
        if _answers(url):
            return
        status = None if api.process is None else api.process.poll()
        if status is not None:
            raise StartError(f"The API could not start ({_status(status)}); what it said is above.")
        if time.monotonic() > deadline:
            raise StartError(f"The API did not answer at {url} within {START_S:g} s.")
        time.sleep(POLL_S / 2)


def _answers(url: str) -> bool:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _take_down(children: list[Child]) -> None:
    deadline = time.monotonic() + GRACE_S
    for child in children:
        child.terminate()
    for child in children:
        child.wait(deadline)
    end_orphans(_pids(children))


def _pids(children: list[Child]) -> set[int]:
    return {child.process.pid for child in children if child.process is not None}


def _url(host: str, port: int) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{reachable}:{port}"


def _status(status: int) -> str:
    return f"status {status}" if status >= 0 else f"signal {-status}"


def _has_fileno(stream: object) -> bool:
    try:
        stream.fileno()  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False
    return True
