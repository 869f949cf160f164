"""Where output goes: results to standard output, everything said about them to standard error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from x5tune.errors import ApiError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from x5tune.client import Client

PIPE_WIDTH = 500


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: what users named things is never taken for markup or an emoji.

    Into a pipe lines are as long as they need to be, unless COLUMNS says otherwise.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, markup=False, emoji=False, soft_wrap=False)


def show(*renderables: RenderableType, stderr: bool = False) -> None:
    """Print these one under the other; what goes into a pipe has no trailing blanks."""
    target, stream = console(stderr=stderr), sys.stderr if stderr else sys.stdout
    for each in renderables:
        if target.is_terminal:
            target.print(each)
            continue
        with target.capture() as captured:
            target.print(each)
        stream.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def is_live() -> bool:
    """Whether standard output is a terminal that can be drawn on."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def write_json(document: object) -> None:
    """One JSON document, indented."""
    sys.stdout.write(_dumps(document, indent=2) + "\n")


def write_json_line(document: object) -> None:
    sys.stdout.write(_dumps(document, indent=None) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Something to know, on standard error."""
    sys.stderr.write(text + "\n")


def stand_in_for_closed_streams() -> None:
    """Go on without output where a stream was closed (`>&-`): Python then has None in its place."""
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            mode = os.O_RDONLY if number == 0 else os.O_WRONLY
            found = os.open(os.devnull, mode)
            if found != number:  # nothing else may take the number, or it would get the output
                os.dup2(found, number)
                os.close(found)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def escape_what_cannot_be_shown() -> None:
    """Never fail on a character that the terminal's encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def talk(url: str | None, token: str | None, *, as_json: bool = False) -> Iterator[Client]:
    """A client for one command. With `as_json` a refusal is printed too: it is what the API said."""
    from x5tune.client import Client

    with Client(url, token) as client:
        try:
            yield client
        except ApiError as error:
            if as_json:
                write_json(error.problem)
            raise


def _dumps(document: object, **options: Any) -> str:
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf8")
    try:
        return json.dumps(document, ensure_ascii=not is_unicode, **options)
    except UnicodeEncodeError:
        return json.dumps(document, **options)
