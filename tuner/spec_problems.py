"""What can be wrong or odd in a job specification, collected so that all of it is told at once."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tuner.errors import TunerError

ECHO_CHARS = 200
MAX_SAFE_INTEGER = 2**53


@dataclass(frozen=True, slots=True)
class Problem:
    """One refused value. `field` is dotted ("search.lr.low"), `value` an `echo` of it, `message` says the remedy."""

    field: str
    value: object
    message: str


@dataclass(frozen=True, slots=True)
class SpecWarning:
    """Something accepted that probably is not what was meant."""

    field: str
    message: str


class SpecError(TunerError):
    """A job specification that cannot be run; `problems` holds everything that is wrong with it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(_line(problem) for problem in self.problems))


class BadValue(ValueError):  # noqa: N818 - always caught and turned into a Problem
    """A value that cannot be what it should be; the message says what to write. `key` names the part at fault."""

    def __init__(self, message: str, key: str | None = None, value: object = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.value = value


@dataclass(slots=True)
class Notes:
    """Collects problems and warnings while a specification is read."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[SpecWarning] = field(default_factory=list)

    def refuse(self, where: str, value: object, message: str) -> None:
        self.problems.append(Problem(where, echo(value), message))

    def refuse_bad(self, where: str, value: object, bad: BadValue) -> None:
        """Refuse `value`, or the part of it that `bad` points at."""
        if bad.key is None:
            self.refuse(where, value, bad.message)
        else:
            self.refuse(f"{where}.{bad.key}", bad.value, bad.message)

    def warn(self, where: str, message: str) -> None:
        self.warnings.append(SpecWarning(where, message))

    def is_clean(self, *sections: str) -> bool:
        """Whether nothing under these sections was refused, so that checks across them make sense."""
        return not any(problem.field.split(".")[0] in sections for problem in self.problems)


def echo(value: object) -> object:
    """`value` as it can be shown and sent as JSON: itself when short and plain, else at most 200 characters of text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= MAX_SAFE_INTEGER:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = value[: ECHO_CHARS + 1] if isinstance(value, str) else _brief(value)
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= ECHO_CHARS else text[: ECHO_CHARS - 1] + "…"


def quoted(value: object) -> str:
    """`value` for use inside a sentence, text in quotes and everything short."""
    shown = echo(value)
    text = repr(shown) if isinstance(value, str) else str(shown)
    return text if len(text) <= ECHO_CHARS else text[: ECHO_CHARS - 1] + "…"


def kind(value: object) -> str:
    """What `value` is, in the words of someone who writes YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"a {type(value).__name__}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """ " Did you mean …?" for the valid name that looks most like `name`, else empty text."""
    match = difflib.get_close_matches(name[:64].lower(), list(valid), n=1, cutoff=0.55)
    return f" Did you mean {match[0]}?" if match else ""


def _line(problem: Problem) -> str:
    place = f"{problem.field}: " if problem.field else ""
    given = "" if problem.value is None else f" (given: {quoted(problem.value)})"
    return f"{place}{problem.message}{given}"


def _brief(value: object) -> str:
    if isinstance(value, int):
        return f"a whole number of {value.bit_length()} bits"
    try:
        return reprlib.repr(value)
    except (ValueError, RecursionError):
        return kind(value)
