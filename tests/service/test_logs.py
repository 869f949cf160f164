"""What strangers say cannot look like an entry of ours."""

from __future__ import annotations

import logging

import pytest

from service.logs import OneLine


def entry(message: str, *arguments: object, error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("x5tune.api", logging.ERROR, __file__, 1, message, arguments, info)
    return OneLine("%(name)s: %(message)s").format(record)


@pytest.mark.parametrize("character", ["\n", "\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "\x00"])
def test_an_entry_is_one_plain_line(character: str) -> None:
    written = entry("%s failed", f"/v1/jobs/a{character}x5tune.api: all is well")
    assert character not in written
    assert len(written.splitlines()) == 1


def test_other_text_and_tracebacks_stay_as_they_are() -> None:
    try:
        raise RuntimeError("größer ✓")
    except RuntimeError as error:
        written = entry("größer ✓", error=error)
    assert written.startswith("x5tune.api: größer ✓\nTraceback")
