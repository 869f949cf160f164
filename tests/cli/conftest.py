"""A service on a real port, and the command line pointed at it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import migrate
from service.settings import Settings
from tests.cli.support import Cli
from tests.service.support import Service, running_service
from x5tune import Client


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("migrated")
    migrate.upgrade(Settings(home, f"sqlite:///{home / 'x5tune.db'}"))
    return home / "x5tune.db"


@pytest.fixture
def service(tmp_path: Path, migrated: Path) -> Iterator[Service]:
    path = tmp_path / "x5tune.db"
    shutil.copy(migrated, path)
    with running_service(Settings(tmp_path, f"sqlite:///{path}")) as running:
        yield running


@pytest.fixture
def cli(service: Service, tmp_path: Path) -> Cli:
    """The command line with the address and an admin's token in its environment."""
    return Cli(tmp_path, {"X5TUNE_URL": service.url, "X5TUNE_TOKEN": service.secrets["admin"]})


@pytest.fixture
def lonely_cli(tmp_path: Path) -> Cli:
    """The command line of somebody who has never started a service."""
    return Cli(tmp_path, {})


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, service.secrets["admin"]) as found:
        yield found
