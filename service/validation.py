"""What Pydantic finds wrong with a request, in our words: the field, the value and what to send instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.errors import MAX_ERRORS, FieldError, invalid
from tuner.spec_problems import kind, nearest, quoted

M = TypeVar("M", bound=BaseModel)
MOMENTS = ("datetime", "timezone")
SAID_OTHERWISE = {
    "Input should be": "must be",
    "String should have": "must have",
    "Value should have": "must have",
    "Value error, ": "",
}


def validated(model: type[M], content: Mapping[str, Any]) -> M:
    """The request as `model` has it; raises a 422 that names every field that is wrong."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise invalid(field_errors(error.errors(), names=list(model.model_fields))) from error


def field_errors(found: Iterable[Any], skip: int = 0, names: Sequence[str] = ()) -> list[FieldError]:
    """Pydantic's errors as ours. `skip` parts of each place say where in the request it is (`query`, `header`).

    Of what is missing there is no value: Pydantic gives the whole that it is missing from. `names` are the valid keys,
    among which the nearest is looked for as often as it is told.
    """
    return [
        FieldError(
            ".".join(str(part) for part in item["loc"][skip:]),
            None if item["type"] == "missing" else item.get("input"),
            _message(item, names if place < MAX_ERRORS else ()),
        )
        for place, item in enumerate(found)
    ]


def _message(item: Mapping[str, Any], names: Sequence[str]) -> str:
    found, given = str(item["type"]), item.get("input")
    if found == "missing":
        return "is missing"
    if found == "extra_forbidden":
        key = str(item["loc"][-1])
        return f"There is no key {quoted(key)} here.{nearest(key, names)} There are: {', '.join(names)}."
    if found == "dict_type":
        return f"must be a mapping, and this is {kind(given)}."
    if found == "string_type":
        return f"must be text, and this is {kind(given)}; put it in quotes."
    if found.startswith(MOMENTS):
        return f"must be a moment with its offset from UTC, such as 2026-01-31T03:00:00Z, and this is {quoted(given)}."
    message = str(item["msg"])
    for theirs, ours in SAID_OTHERWISE.items():
        message = message.replace(theirs, ours)
    return message
