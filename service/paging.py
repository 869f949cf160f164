"""Opaque cursors: the key of the last item of a page, in a form that callers do not build themselves."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from service.errors import FieldError, invalid
from service.ids import is_id

MAX_LIMIT = 200
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT, description="How many items at most.")]
Cursor = Annotated[str | None, Query(description="The `next` of the page before.")]
T = TypeVar("T")


def id_cursor(cursor: str | None) -> str | None:
    """The id in a cursor; a bad one is 422."""
    key = _decode(cursor)
    if key is not None and not is_id(key):
        raise _bad(cursor)
    return key


def number_cursor(cursor: str | None) -> int | None:
    """The number in a cursor; a bad one is 422."""
    key = _decode(cursor)
    if key is None:
        return None
    if not key.isascii() or not key.isdecimal() or len(key) > 15:
        raise _bad(cursor)
    return int(key)


def split(rows: Sequence[T], limit: int, key: Callable[[T], object]) -> tuple[Sequence[T], str | None]:
    """One page out of up to `limit + 1` rows, and the cursor of the next."""
    if len(rows) <= limit:
        return rows, None
    return rows[:limit], encode(key(rows[limit - 1]))


def encode(key: object) -> str:
    return base64.urlsafe_b64encode(f"1:{key}".encode()).decode().rstrip("=")


def _decode(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        text = base64.b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        version, _, key = text.decode("ascii").partition(":")
    except (UnicodeError, binascii.Error, ValueError) as error:
        raise _bad(cursor) from error
    if version != "1":
        raise _bad(cursor)
    return key


def _bad(cursor: str | None) -> Exception:
    message = "not a cursor of this list; take `next` of the page before"
    return invalid([FieldError("cursor", cursor, message)])
