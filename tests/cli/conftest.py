"""A service on a real port, and the command line pointed at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.cli.support import Cli
from tests.service.support import Service, running_service
from x5tune import Client


@pytest.fixture
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    """The API on a real port, on the database that --database names."""
    settings: Settings = request.getfixturevalue(f"{request.config.getoption('--database')}_settings")
    with running_service(settings) as running:
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
