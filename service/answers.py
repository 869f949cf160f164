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
from service.expressions import json_moment
from service.models import Base

Row = sa.Row[*tuple[Any, ...]]


class Shape:
    """How rows of a table look from outside. `columns` are what to select: the plain ones, then those that are JSON."""

    def __init__(self, schema: type[schemas.Schema], model: type[Base]) -> None:
        shown = [column for column in sa.inspect(model).columns if column.key in schema.model_fields]
        plain = [column for column in shown if not isinstance(column.type, Timestamp | CleanJson)]
        moments = [json_moment(column).label(column.key) for column in shown if isinstance(column.type, Timestamp)]
        stored = [sa.cast(column, sa.Text).label(column.key) for column in shown if isinstance(column.type, CleanJson)]
        self._plain = [column.key for column in plain]
        self._json = [f',"{column.key}":' for column in (*moments, *stored)]
        self.columns = (*plain, *moments, *stored)

    def rows(self, session: Session, query: sa.Select[Any]) -> Sequence[Row]:
        """The rows of the table that `query` finds."""
        return session.execute(query.with_only_columns(*self.columns)).all()

    def text(self, row: Sequence[Any], **computed: Any) -> str:
        """A row that begins with `columns` as a JSON object, with what is not in the table."""
        plain = dict(zip(self._plain, row, strict=False))
        head = to_json(plain | computed, inf_nan_mode="null").decode()
        texts = zip(self._json, row[len(self._plain) :], strict=False)
        return "".join((head[:-1], *(key + (text or "null") for key, text in texts), "}"))


def page(items: Iterable[str], following: str | None = None) -> Response:
    """A page of JSON objects, and the cursor of the next."""
    return one(f'{{"items":[{",".join(items)}],"next":{to_json(following).decode()}}}')


def one(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(text, status, headers, media_type="application/json")
