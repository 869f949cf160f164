"""Identifiers: UUID version 7 as text, so that sorting by id sorts by age."""

from __future__ import annotations

import re

import uuid_utils

_SHAPE = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def new_id() -> str:
    return str(uuid_utils.uuid7())


def is_id(text: str) -> bool:
    """Whether `text` could be an id at all; what could not never reaches the database."""
    return _SHAPE.fullmatch(text) is not None
