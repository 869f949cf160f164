"""Server-Sent Events, as far as the service uses them: one line of JSON an event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import cast

from x5tune.shapes import Event


def read_events(chunks: Iterable[str]) -> Iterator[Event]:
    """The events in a stream's text; an event that breaks off is left out (it comes again)."""
    data: list[str] = []
    for line in _lines(chunks):
        if line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
        elif not line and data:
            yield cast(Event, json.loads("\n".join(data)))
            data = []


def last_id(after: int) -> dict[str, str]:
    return {"Last-Event-ID": str(after)} if after > 0 else {}


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines ended by a line feed only: other separators that Python knows may stand inside an event."""
    rest = ""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split("\n")
        for line in complete:
            yield line.removesuffix("\r")
