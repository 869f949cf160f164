"""Answers written from rows: what the database holds as JSON goes out as it stands, neither read nor written again.

Most of a page of jobs is that: specifications, measurements. The schemas describe the answers; tests hold them to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic_core import to_json
from sqlalchemy.orm import Session
from starlette.responses import Response

from service import schemas
from service.database import CleanJson, Timestamp
from service.models import Base

Row = sa.Row[*tuple[Any, ...]]


class Shape:
    """How rows of a table look from outside. `columns` are what to select: the plain ones, then JSON as its text."""

    def __init__(self, schema: type[schemas.Schema], model: type[Base]) -> None:
        shown = [column for column in sa.inspect(model).columns if column.key in schema.model_fields]
        stored = [column for column in shown if isinstance(column.type, CleanJson)]
        plain = [column for column in shown if not isinstance(column.type, CleanJson)]
        self._plain = [column.key for column in plain]
        self._times = [column.key for column in plain if isinstance(column.type, Timestamp)]
        self._stored = [f',"{column.key}":' for column in stored]
        self.columns = (*plain, *(sa.cast(column, sa.Text).label(column.key) for column in stored))

    def rows(self, session: Session, query: sa.Select[Any]) -> Sequence[Row]:
        """The rows of the table that `query` finds."""
        return session.execute(query.with_only_columns(*self.columns)).all()

    def text(self, row: Sequence[Any], **computed: Any) -> str:
        """A row that begins with `columns` as a JSON object, with what is not in the table."""
        plain = dict(zip(self._plain, row, strict=False))
        for name in self._times:
            if plain[name] is not None:
                plain[name] = schemas.rfc3339(plain[name])
        plain |= computed
        head = to_json(plain, inf_nan_mode="null").decode()
        stored = zip(self._stored, row[len(self._plain) :], strict=False)
        return "".join((head[:-1], *(key + (text or "null") for key, text in stored), "}"))


def page(items: Iterable[str], following: str | None = None) -> Response:
    """A page of JSON objects, and the cursor of the next."""
    return one(f'{{"items":[{",".join(items)}],"next":{to_json(following).decode()}}}')


def one(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")
