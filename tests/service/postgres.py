"""PostgreSQL for the tests: the server that X5TUNE_TEST_POSTGRES_URL names, or one of our own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from uuid import uuid4

import pytest
import sqlalchemy as sa

from bench.postgres_server import postgres_server

VARIABLE = "X5TUNE_TEST_POSTGRES_URL"


class Databases:
    """Databases to come and go on a running server; `url` is its maintenance database's."""

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

    def close(self) -> None:
        self._admin.dispose()


@contextlib.contextmanager
def databases() -> Iterator[Databases]:
    """A server for as long as the context lasts; without one the tests are skipped, in CI they fail."""
    with contextlib.ExitStack() as stack:
        url = os.environ.get(VARIABLE)
        try:
            url = url or stack.enter_context(postgres_server(is_durable=False)).url
        except FileNotFoundError as error:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{error}; or set {VARIABLE}")
        found = Databases(url)
        stack.callback(found.close)
        yield found
