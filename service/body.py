"""Request bodies: bounded, of a known type, and holding nothing that JSON or the database cannot."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from service.errors import (
    FieldError,
    invalid,
    malformed,
    too_large,
    unsupported_encoding,
    unsupported_media_type,
)

JSON_TYPES = ("application/json",)
YAML_TYPES = ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")
MAX_DEPTH = 64
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class RawBody:
    """A body that was read to its end, and its media type in lower case without parameters."""

    content: bytes
    media_type: str


async def read_raw(request: Request) -> RawBody:
    """The whole body; 413 as soon as it is too large, whatever `Content-Length` claims; 415 if compressed."""
    limit = request.app.state.settings.body_limit_bytes
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() != "identity":
        raise unsupported_encoding(encoding)
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > limit:
        raise too_large(limit)
    content = bytearray()
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise too_large(limit)
    except ClientDisconnect as error:  # nobody will read the answer, but it is no bug of ours
        raise malformed("The body ended before its time.") from error
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return RawBody(bytes(content), media_type)


Raw = Annotated[RawBody, Depends(read_raw)]


def parse_json(body: RawBody) -> dict[str, Any]:
    """The JSON object in a body; raises the problem that fits otherwise."""
    if body.media_type not in JSON_TYPES and not body.media_type.endswith("+json"):
        raise unsupported_media_type(body.media_type, JSON_TYPES)
    text = text_of(body)
    if not text.strip():
        raise malformed("The body is empty; send a JSON object.")
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_int=_whole)
    except RecursionError as error:
        raise malformed("The body is nested too deeply.") from error
    except ValueError as error:
        raise malformed(f"The body is not valid JSON: {error}.") from error
    return checked(value)


def text_of(body: RawBody) -> str:
    try:
        return body.content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise malformed(f"The body is not valid UTF-8: {error.reason} at byte {error.start}. Send UTF-8.") from error


def checked(value: Any) -> dict[str, Any]:
    """Raise a 422 unless `value` is a mapping of storable values."""
    if not isinstance(value, dict):
        raise invalid([FieldError("", None, f"the body must be an object, not {_kind(value)}")])
    problems = list(_unstorable(value, "", 0))
    if problems:
        raise invalid(problems)
    return value


def _unstorable(value: Any, path: str, depth: int) -> Iterator[FieldError]:
    if depth > MAX_DEPTH:
        yield FieldError(path[:200], None, f"nested more than {MAX_DEPTH} levels deep")
    elif isinstance(value, float) and not math.isfinite(value):
        yield FieldError(path, str(value), "must be a finite number")
    elif isinstance(value, str) and _UNSTORABLE.search(value):
        yield FieldError(path, value, "holds a character that cannot be stored (NUL or half of a surrogate pair)")
    elif isinstance(value, dict):
        for key, item in value.items():
            name = f"{path}.{key}" if path else str(key)
            if isinstance(key, str) and _UNSTORABLE.search(key):
                yield FieldError(
                    path, key, "a key holds a character that cannot be stored (NUL or half of a surrogate pair)"
                )
            else:
                yield from _unstorable(item, name, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _unstorable(item, f"{path}.{index}" if path else str(index), depth + 1)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:100]!r} is given twice in one object")
        found[key] = value
    return found


def _whole(digits: str) -> int | float:
    """A whole number; one of more digits than Python converts is as good as infinite, and refused as that."""
    try:
        return int(digits)
    except ValueError:
        return -math.inf if digits.startswith("-") else math.inf


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list"}
    return names.get(type(value), type(value).__name__)
