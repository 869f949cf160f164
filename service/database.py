"""Engines and transactions: one owner each, short on SQLite, times from the database's clock."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic_core import from_json
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from service.clean import clean_json, clean_text
from tuner.connections import SQLITE_BUSY_S, connect_arguments

T = TypeVar("T")


class Timestamp(sa.types.TypeDecorator[datetime]):
    """A moment: aware UTC in Python, `timestamptz` on PostgreSQL, sortable text on SQLite."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, _dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, _dialect: sa.Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class CleanText(sa.types.TypeDecorator[str]):
    """Text from outside, made storable (see `service.clean`)."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, _dialect: sa.Dialect) -> str | None:
        return None if value is None else clean_text(value)


class CleanJson(sa.types.TypeDecorator[Any]):
    """JSON from outside, made storable (see `service.clean`); None is SQL NULL."""

    impl = sa.JSON(none_as_null=True)
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> Any:
        return clean_json(value)


class now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function that it is
    """The database's clock, `seconds` from now. Not the transaction's start: that may have waited for a lock."""

    type = Timestamp()
    inherit_cache = True
    name = "x5_now"

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(sa.literal(float(seconds), sa.Float()))


@compiles(now, "sqlite")
def _now_on_sqlite(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    # The text that SQLAlchemy stores: microseconds, of which SQLite's clock fills three digits.
    return f"(strftime('%Y-%m-%d %H:%M:%f', 'now', {seconds} || ' seconds') || '000')"


@compiles(now, "postgresql")
def _now_on_postgresql(element: now, compiler: SQLCompiler, **kw: Any) -> str:
    seconds = compiler.process(element.clauses, **kw)
    return f"(clock_timestamp() + CAST({seconds} AS double precision) * interval '1 second')"


def make_engine(url: str, *, pool_size: int = 5) -> sa.Engine:
    """An engine for a settled URL. On SQLite: WAL, foreign keys on, and transactions that we begin ourselves."""
    is_sqlite = url.startswith("sqlite")
    engine = sa.create_engine(
        url,
        pool_size=pool_size,
        max_overflow=40,
        pool_pre_ping=not is_sqlite,
        json_serializer=_json,
        json_deserializer=from_json,  # in 60 % of the standard library's time; a page of jobs is mostly that
        connect_args={**connect_arguments(url), **({"check_same_thread": False} if is_sqlite else {})},
    )
    if is_sqlite:
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin transactions of its own
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {SQLITE_BUSY_S * 1000}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    # A deferred transaction that turns into a write cannot wait for the lock and fails at once; so ask for it first.
    is_write = connection.get_execution_options().get("x5_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_write else "BEGIN")


def is_passing(error: DBAPIError) -> bool:
    """Whether to try again: the database was busy, or the connection broke."""
    return isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated


class Database:
    """Hands out transactions: `read()` never writes, `write()` commits when its block ends without an error."""

    def __init__(self, url: str, *, pool_size: int = 5) -> None:
        self.url = url
        self.engine = make_engine(url, pool_size=pool_size)
        # PostgreSQL reads each query for itself anyway (read committed), and psycopg forgets its prepared statements
        # with each rollback, which is how a transaction that only read would end: every query would be planned anew.
        each_alone = {} if self.engine.dialect.name == "sqlite" else {"isolation_level": "AUTOCOMMIT"}
        self._reads = sessionmaker(self.engine.execution_options(**each_alone), expire_on_commit=False)
        self._writes = sessionmaker(self.engine.execution_options(x5_write=True), expire_on_commit=False)

    @contextmanager
    def read(self) -> Iterator[Session]:
        with self._reads() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        with self._writes.begin() as session:
            yield session

    def transact(self, work: Callable[[Session], T], *, patience_s: float = 120.0) -> T:
        """Run `work` in a write transaction, again when the database was busy or the connection broke.

        `work` must be safe to repeat after a rollback. Gives up after `patience_s` and lets the error through.
        """
        deadline = time.monotonic() + patience_s
        pause_s = 0.05
        while True:
            try:
                with self.write() as session:
                    return work(session)
            except DBAPIError as error:
                if not is_passing(error) or time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 2.0)

    def close(self) -> None:
        self.engine.dispose()
