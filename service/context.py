"""What routes take from the application: its database and its settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from service.database import Database
from service.errors import FieldError, invalid, not_found
from service.ids import is_id
from service.settings import Settings


async def _database(request: Request) -> Database:
    database: Database = request.app.state.database
    return database


async def _settings(request: Request) -> Settings:
    settings: Settings = request.app.state.settings
    return settings


Db = Annotated[Database, Depends(_database)]
Config = Annotated[Settings, Depends(_settings)]


def require_id(what: str, text: str) -> str:
    """`text` if it could be an id; otherwise there is nothing of that name."""
    if not is_id(text):
        raise not_found(what, text)
    return text


def storable(field: str, text: str | None) -> str | None:
    """Text to compare with what the database holds; PostgreSQL takes no NUL, so one is 422."""
    if text is not None and "\x00" in text:
        raise invalid([FieldError(field, None, "holds a NUL character")])
    return text
