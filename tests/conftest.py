"""What holds for all tests, and the databases they run on."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import migrate
from service.database import Database
from service.settings import Settings
from tests.service.postgres import Databases, databases

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in its background with SIGINT ignored, and every process of ours would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--database",
        choices=["sqlite", "postgres"],
        default="sqlite",
        help="what the command line and whole studies are tested on; the service's own tests always run on both",
    )


@pytest.fixture(scope="session")
def postgres() -> Iterator[Databases]:
    with databases() as found:
        yield found


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("template")
    migrate.upgrade(Settings(home, f"sqlite:///{home / 'x5tune.db'}"))
    return home / "x5tune.db"


@pytest.fixture(scope="session")
def postgres_template(postgres: Databases, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = postgres.create()
    migrate.upgrade(Settings(tmp_path_factory.mktemp("home"), url))
    return url.partition("?")[0].rsplit("/", 1)[-1]


@pytest.fixture
def postgres_url(postgres: Databases) -> Iterator[str]:
    """A fresh, empty database."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def study_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh, empty database of the kind that --database names."""
    if request.config.getoption("--database") == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'study.db'}"


@pytest.fixture
def sqlite_settings(tmp_path: Path, sqlite_template: Path) -> Settings:
    path = tmp_path / "x5tune.db"
    shutil.copy(sqlite_template, path)
    return Settings(tmp_path, f"sqlite:///{path}", lease_s=5.0)


@pytest.fixture
def postgres_settings(tmp_path: Path, postgres: Databases, postgres_template: str) -> Iterator[Settings]:
    url = postgres.create(postgres_template)
    yield Settings(tmp_path, url, lease_s=5.0)
    postgres.drop(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def settings(request: pytest.FixtureRequest) -> Settings:
    """The settings of a fresh migrated database, on SQLite and on PostgreSQL."""
    found: Settings = request.getfixturevalue(f"{request.param}_settings")
    return found


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
