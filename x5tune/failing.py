"""Errors as people read them: one `Error: …`, what to do, and an exit code. Never a traceback."""

from __future__ import annotations

import errno
import os
import sys

from x5tune import wording
from x5tune.errors import (
    ConfigurationError,
    InvalidRequest,
    InvalidSpec,
    Unauthorised,
    Unreachable,
    UsageError,
    X5tuneError,
)
from x5tune.shapes import ProblemField

PLAINER = {
    "Input should be a valid integer, unable to parse string as an integer": "must be a whole number",
    "Input should be a valid number, unable to parse string as a number": "must be a number",
    "Input should be": "must be",
}
"""What Typer says of an option's value, and what we do."""
FAILED, USAGE, UNREACHABLE, UNAUTHORISED, INTERRUPTED = 1, 2, 3, 4, 130


def is_debugging() -> bool:
    return os.environ.get("X5TUNE_DEBUG", "") not in ("", "0")


def report(error: BaseException) -> int:
    """Say what went wrong on standard error; the exit code."""
    if isinstance(error, InvalidRequest) and error.errors:
        _say(_headline(error))
        _say_fields(error)
        return USAGE
    _say(_sentence(error))
    for line in [*advice(error), *getattr(error, "__notes__", ())]:
        _say(line, is_error=False)
    return exit_code(error)


def exit_code(error: BaseException) -> int:
    if isinstance(error, Unreachable):
        return UNREACHABLE
    if isinstance(error, Unauthorised):
        return UNAUTHORISED
    if isinstance(error, UsageError | ConfigurationError | InvalidRequest):
        return USAGE
    return FAILED


def advice(error: BaseException) -> list[str]:
    """What to do next."""
    if isinstance(error, Unreachable):
        return [
            "Start a service on this machine with: x5tune serve",
            "Or name another one: --url, or X5TUNE_URL and X5TUNE_TOKEN.",
        ]
    if isinstance(error, Unauthorised) and error.status == 403:
        return ["Use a token with a wider scope: --token or X5TUNE_TOKEN. An admin makes one with: x5tune token create"]
    if isinstance(error, Unauthorised):
        return [
            "Give a token of that service: --token or X5TUNE_TOKEN. An admin makes one with: x5tune token create",
            "For the service of this machine none is needed where X5TUNE_HOME is the one that it was started with.",
        ]
    if isinstance(error, X5tuneError) or _is_full(error) or is_debugging():
        return []
    return ["This is a bug in x5tune; X5TUNE_DEBUG=1 shows where."]


def _is_full(error: BaseException) -> bool:
    """Whether a file could not be written for a reason that is no bug: a full disk, a broken one, a quota."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _headline(error: InvalidRequest) -> str:
    what = "The specification" if isinstance(error, InvalidSpec) else "The request"
    return f"{what} has {wording.plural(len(error.errors), 'problem')}."


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and _is_full(error):
        return f"Cannot write {error.filename or 'the output'}: {error.strerror}."
    text = wording.clean(error).strip()
    return text if isinstance(error, X5tuneError) else f"{type(error).__name__}: {text}"


def _say(text: str, *, is_error: bool = True) -> None:
    from rich.text import Text

    from x5tune.screen import show

    line = Text("Error: ", "bold red") if is_error else Text()
    show(line.append(text, "not bold default"), stderr=True)


def _say_fields(error: InvalidRequest) -> None:
    """Each problem: field, value, remedy, aligned; the remedy below where the terminal is narrow."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from x5tune import screen

    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        grid.add_column(overflow="fold")
    rows = [(wording.one_line(each["field"]), _value(each), wording.one_line(each["message"])) for each in error.errors]
    if screen.console(stderr=True).width < 50 + max(len(field) + len(value) for field, value, _ in rows):
        for field, value, message in rows:
            head = Text("  ").append(field or "(whole)", "bold").append(f"  {value}".rstrip())
            screen.show(head, Padding(Text(message), (0, 0, 0, 4)), stderr=True)
        return
    for field, value, message in rows:
        grid.add_row(Text(f"  {field}", "bold"), Text(value), Text(message))
    screen.show(grid, stderr=True)


def _value(problem: ProblemField) -> str:
    return "" if problem["value"] is None else wording.brief(problem["value"])


def flush() -> int:
    """Write out what is left, perhaps into a closed pipe or onto a full disk; the exit code, 0 if it went."""
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # else Python tries once more as it ends
            code = report(error)
    return code


def report_usage(error: Exception, message: str) -> int:
    """An error of Typer's: say it as all others are said, and where the help is."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(message)  # printed by Rich already; what is left is empty
        return USAGE
    for theirs, ours in PLAINER.items():
        message = message.replace(theirs, ours)
    _say(message)
    if context is not None:
        _say(f"Help: {context.command_path} --help", is_error=False)
    return int(getattr(error, "exit_code", USAGE))
