"""What the fields of requests have in common: checks that Pydantic does not know."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field
from pydantic_core import PydanticCustomError


def one_line(name: str) -> str:
    """As a job's name: what a terminal would obey is no part of a name."""
    if any(unicodedata.category(character) == "Cc" for character in name):
        raise PydanticCustomError("control", "must not contain control characters such as line breaks or tabs")
    if not name.strip():
        raise PydanticCustomError("blank", "is blank; say what it is for")
    return name


def _utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError as error:  # the last hours of the year 9999, west of Greenwich
        raise PydanticCustomError("moment", "is out of range: years go from 1 to 9999") from error


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(one_line)]
Moment = Annotated[AwareDatetime, AfterValidator(_utc)]
"""A moment with its offset from UTC, turned into UTC."""
