"""Databases that are ready to use: migrated once, copied for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import migrate
from service.database import Database
from service.settings import Settings
from tests.service.postgres import PostgresServer, run_postgres
from tests.service.support import Service, running_service


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    settings = Settings(home, f"sqlite:///{home / 'x5tune.db'}")
    migrate.upgrade(settings)
    return home / "x5tune.db"


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = postgres.create()
    migrate.upgrade(Settings(tmp_path_factory.mktemp("home"), url))
    return url.partition("?")[0].rsplit("/", 1)[-1]


@pytest.fixture
def sqlite_settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    path = tmp_path / "x5tune.db"
    shutil.copy(sqlite_template, path)
    return Settings(tmp_path, f"sqlite:///{path}", lease_s=5.0)


@pytest.fixture
def postgres_settings(tmp_path: Path, postgres: PostgresServer, postgres_template: str) -> Iterator[Settings]:
    url = postgres.create(postgres_template)
    yield Settings(tmp_path, url, lease_s=5.0)
    postgres.drop(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def settings(request: pytest.FixtureRequest) -> Settings:
    """The settings of a fresh migrated database, on SQLite and on PostgreSQL."""
    found: Settings = request.getfixturevalue(f"{request.param}_settings")
    return found


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """The settings of a database that has never been migrated."""
    if request.param == "sqlite":
        yield Settings(tmp_path, f"sqlite:///{tmp_path / 'x5tune.db'}")
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create()
    yield Settings(tmp_path, url)
    server.drop(url)


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path) -> Path:
    """A home whose database is migrated already: that saves a second or two a test."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(sqlite_template, home / "x5tune.db")
    return home


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    found = Database(settings.database_url)
    yield found
    found.close()


@pytest.fixture
def service(sqlite_settings: Settings) -> Iterator[Service]:
    """The API on a real port, over SQLite."""
    with running_service(sqlite_settings) as running:
        yield running


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path) -> Iterator[Service]:
    """One API for all the tests that are only refused or only look: they must leave nothing that others could see."""
    home = tmp_path_factory.mktemp("shared")
    shutil.copy(sqlite_template, home / "x5tune.db")
    with running_service(Settings(home, f"sqlite:///{home / 'x5tune.db'}")) as running:
        yield running


@pytest.fixture
def any_service(settings: Settings) -> Iterator[Service]:
    """The API on a real port, over both databases."""
    with running_service(settings) as running:
        yield running
