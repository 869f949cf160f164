"""The API, on a real port, over the databases of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.service.support import Service, running_service


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def empty_settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """The settings of a database that has never been migrated."""
    if request.param == "sqlite":
        yield Settings(tmp_path, f"sqlite:///{tmp_path / 'x5tune.db'}")
        return
    yield Settings(tmp_path, request.getfixturevalue("postgres_url"))


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
