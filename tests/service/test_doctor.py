"""Each of the service's checks on a real thing in the state that it is for."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from alembic import command
from service import doctor, migrate
from service.database import make_engine
from service.settings import Settings
from tests.service.support import running_service
from tuner.checkup import Finding, Level
from tuner.machine_checks import LEAST_TORCH, RAY, look_at_ray, missing_of_extra, numbers


def test_a_migrated_database_is_fine_and_its_clock_is_this_machines(settings: Settings) -> None:
    found = doctor.look_at_database(settings)
    assert (found.level, f"at revision {migrate.head()}" in found.found) == (Level.OK, True)
    assert doctor.look_at_clock(settings).level is Level.OK


def test_an_old_database_is_named_with_the_remedy(settings: Settings) -> None:
    command.downgrade(migrate._config(settings), "-1")
    old = doctor.look_at_database(settings)
    assert old.level is (Level.WARNING if settings.is_sqlite else Level.PROBLEM)  # `serve` migrates SQLite by itself
    assert f"needs {migrate.head()}" in old.found
    assert "x5tune migrate" in (old.action or "")

    migrate.upgrade(settings)
    assert doctor.look_at_database(settings).level is Level.OK


def test_a_database_of_a_newer_x5tune_is_not_to_be_migrated(settings: Settings) -> None:
    engine = make_engine(settings.database_url)
    with engine.begin() as connection:
        connection.execute(sa.text(f"UPDATE {migrate.VERSION_TABLE} SET version_num = 'later'"))
    engine.dispose()
    assert doctor.look_at_database(settings) == Finding(
        Level.PROBLEM,
        _shown(settings) + " is at revision later, made by a newer x5tune",
        "pip install --upgrade x5tune",
    )


def _shown(settings: Settings) -> str:
    url = sa.make_url(settings.database_url)
    return str(url.database) if settings.is_sqlite else url.render_as_string()


def test_an_sqlite_file_is_neither_made_nor_changed(tmp_path: Path) -> None:
    absent = Settings(tmp_path, f"sqlite:///{tmp_path / 'absent.db'}")
    assert doctor.look_at_database(absent) == Finding(
        Level.OK, f"{tmp_path / 'absent.db'} is not there yet", "x5tune serve makes it."
    )
    other = tmp_path / "others.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (id)")
    connection.close()
    before = other.read_bytes()

    found = doctor.look_at_database(Settings(tmp_path, f"sqlite:///{other}"))
    assert (found.level, "at revision none" in found.found) == (Level.WARNING, True)
    assert (other.read_bytes(), sorted(tmp_path.iterdir())) == (before, [other])


def test_what_is_no_database_and_what_is_locked(sqlite_settings: Settings) -> None:
    path = Path(_shown(sqlite_settings))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    locked = doctor.look_at_database(sqlite_settings)
    connection.close()
    assert (locked.level, "locked" in locked.found, "end that one" in (locked.action or "")) == (
        Level.PROBLEM,
        True,
        True,
    )

    path.write_bytes(b"not a database at all" * 100)
    broken = doctor.look_at_database(sqlite_settings)
    assert (broken.level, "not a database" in broken.found) == (Level.PROBLEM, True)


@pytest.mark.postgres
def test_a_standby_is_no_place_for_jobs(postgres_settings: Settings) -> None:
    url = sa.make_url(postgres_settings.database_url).update_query_dict(
        {"options": "-c default_transaction_read_only=on"}
    )
    found = doctor.look_at_database(dataclasses.replace(postgres_settings, database_url=url.render_as_string(False)))
    assert (found.level, "read-only" in found.found) == (Level.PROBLEM, True)


@pytest.mark.parametrize(("mode", "level"), [(0o700, Level.OK), (0o755, Level.WARNING), (0o777, Level.PROBLEM)])
def test_a_home_is_private(tmp_path: Path, mode: int, level: Level) -> None:
    tmp_path.chmod(mode)
    found = doctor.look_at_home(tmp_path)
    tmp_path.chmod(0o700)
    assert (found.level, f"mode {mode:o}" in found.found) == (level, True)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_is_not_there_or_is_a_file(tmp_path: Path) -> None:
    assert doctor.look_at_home(tmp_path / "deep" / "home").level is Level.OK
    assert not (tmp_path / "deep").exists()
    (tmp_path / "file").write_text("")
    assert doctor.look_at_home(tmp_path / "file").level is Level.PROBLEM
    assert "cannot be made" in doctor.look_at_home(tmp_path / "file" / "home").found


def test_only_its_owner_may_read_the_token(tmp_path: Path) -> None:
    path = tmp_path / "client.json"
    assert doctor.look_at_client_file(path).level is Level.OK
    path.write_text(json.dumps({"url": "http://127.0.0.1:1", "token": "hush"}))
    path.chmod(0o640)
    assert doctor.look_at_client_file(path).action == f"chmod 600 {path}"
    path.chmod(0o600)
    good = doctor.look_at_client_file(path)
    assert (good.level, "hush" in good.found) == (Level.OK, False)
    for broken in ("", "[]", "{}", '{"url": "x", "token": null}'):
        path.write_text(broken)
        assert doctor.look_at_client_file(path).level is Level.PROBLEM, broken


def test_a_free_port_and_a_strangers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        settings = Settings(tmp_path, "sqlite:////nowhere", port=port)
        taken = doctor.look_at_port(settings)
    assert (taken.level, f"127.0.0.1:{port}" in taken.found, "X5TUNE_PORT" in (taken.action or "")) == (
        Level.PROBLEM,
        True,
        True,
    )
    assert doctor.look_at_port(settings) == Finding(Level.OK, f"127.0.0.1:{port} is free")
    nowhere = doctor.look_at_port(dataclasses.replace(settings, host="198.51.100.1"))
    assert (nowhere.level, "198.51.100.1" in nowhere.found) == (Level.PROBLEM, True)


def test_our_service_on_the_port_is_told_from_another_homes(sqlite_settings: Settings) -> None:
    with running_service(sqlite_settings) as service:
        port = int(service.url.rpartition(":")[2])
        settings = dataclasses.replace(sqlite_settings, port=port)
        assert "another home" in doctor.look_at_port(settings).found  # nobody serves from this home
        settings.client_file.write_text(json.dumps({"url": service.url, "token": "hush"}))
        with _serving_from(settings.home):
            ours = doctor.look_at_port(settings)
    assert ours == Finding(Level.OK, f"x5tune serve (process {os.getpid()}) answers at {service.url}")
    with _serving_from(settings.home):
        silent = doctor.look_at_port(settings)
    assert (silent.level, "does not answer" in silent.found) == (Level.PROBLEM, True)


@contextmanager
def _serving_from(home: Path) -> Iterator[None]:
    """Hold the lock that `serve` holds."""
    with (home / "serve.lock").open("w") as file:
        file.write(str(os.getpid()))
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_ray_cluster_that_does_not_answer_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        found = look_at_ray(address)
    assert (found.level, f"nothing answers at {address}" in found.found) == (Level.PROBLEM, True)


def test_what_is_asked_for_is_what_the_package_asks_for() -> None:
    from importlib.metadata import requires

    asked = " ".join(requires("x5tune") or ())
    assert f"torch>={'.'.join(map(str, LEAST_TORCH))};" in asked
    assert f">={'.'.join(map(str, RAY))};" in asked.partition("ray[tune]")[2]
    assert missing_of_extra("worker") == []


@pytest.mark.parametrize(
    ("version", "expected"), [("2.13.0+cpu", (2, 13, 0)), ("2.7.0a0+git", (2, 7, 0)), ("unknown", ())]
)
def test_versions_are_compared_as_numbers(version: str, expected: tuple[int, ...]) -> None:
    assert numbers(version) == expected
