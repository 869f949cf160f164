"""The databases of the service's tests."""

from __future__ import annotations

from tests.service.conftest import (  # noqa: F401 - fixtures
    database,
    home,
    postgres,
    postgres_settings,
    postgres_template,
    settings,
    sqlite_settings,
    sqlite_template,
)
