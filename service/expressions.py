"""What a long list asks in each database's own words: one parameter, no index that misleads, times as they go out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class JsonTexts(sa.types.TypeDecorator[Sequence[str]]):
    """A list of texts as one parameter."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Sequence[str] | None, _dialect: sa.Dialect) -> str:
        return json.dumps(list(value or ()))


class is_among(FunctionElement[Any]):  # noqa: N801 - reads as the SQL function that it is
    """Whether `column` is one of the texts that the parameter `name` holds.

    `IN` has a parameter for each: with 200 of them, naming them takes as long as the query.
    """

    type = sa.types.NullType()  # a Boolean becomes `... = 1` on SQLite, which then looks for it in no index
    inherit_cache = True
    name = "x5_is_among"

    def __init__(self, column: Any, name: str) -> None:
        super().__init__(column, sa.bindparam(name, type_=JsonTexts()))


@compiles(is_among, "postgresql")
def _is_among_on_postgresql(element: is_among, compiler: SQLCompiler, **kw: Any) -> str:
    column, texts = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} = ANY (ARRAY (SELECT json_array_elements_text(CAST({texts} AS json))))"


@compiles(is_among, "sqlite")
def _is_among_on_sqlite(element: is_among, compiler: SQLCompiler, **kw: Any) -> str:
    column, texts = (compiler.process(clause, **kw) for clause in element.clauses)
    return f"{column} IN (SELECT value FROM json_each({texts}))"  # noqa: S608 - both compiled


class looked_at(FunctionElement[str]):  # noqa: N801 - reads as the SQL function that it is
    """A column that most rows match: SQLite's planner, which cannot know, is not to look it up in an index."""

    type = sa.Text()
    inherit_cache = True
    name = "x5_looked_at"


@compiles(looked_at, "postgresql")
def _looked_at_on_postgresql(element: looked_at, compiler: SQLCompiler, **kw: Any) -> str:
    return compiler.process(element.clauses, **kw)


@compiles(looked_at, "sqlite")
def _looked_at_on_sqlite(element: looked_at, compiler: SQLCompiler, **kw: Any) -> str:
    return f"+{compiler.process(element.clauses, **kw)}"


class json_moment(FunctionElement[str]):  # noqa: N801 - reads as the SQL function that it is
    """A moment as JSON: `service.schemas.rfc3339` in quotes, made in a fraction of the time that it takes in Python."""

    type = sa.Text()
    inherit_cache = True
    name = "x5_json_moment"


@compiles(json_moment, "postgresql")
def _json_moment_on_postgresql(element: json_moment, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)
    return f"""'"' || to_char({moment} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') || '"'"""


@compiles(json_moment, "sqlite")
def _json_moment_on_sqlite(element: json_moment, compiler: SQLCompiler, **kw: Any) -> str:
    moment = compiler.process(element.clauses, **kw)  # stored as YYYY-MM-DD HH:MM:SS.ffffff, in UTC
    return f"""'"' || replace(substr({moment}, 1, 23), ' ', 'T') || 'Z"'"""
