"""A mapping inside a job specification, read key by key with every problem noted under its dotted name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tuner.spec_numbers import Bounds, read_integer, read_number
from tuner.spec_problems import BadValue, Notes, kind, nearest, quoted

_MAX_UNKNOWN_KEYS = 20
_T = TypeVar("_T", bound=str)


@dataclass(frozen=True, slots=True)
class Section:
    """Its readers note a problem and return the default for a value that is wrong; null is the default too."""

    notes: Notes
    path: str
    values: Mapping[str, object]

    @staticmethod
    def open(notes: Notes, path: str, value: object, keys: Sequence[str]) -> Section:
        """The section under `path`: empty for null, and for what is not a mapping; unknown keys are refused."""
        if value is None:
            return Section(notes, path, {})
        if not isinstance(value, Mapping):
            notes.refuse(path, value, f"must be a mapping with keys from {', '.join(keys)}, and this is {kind(value)}.")
            return Section(notes, path, {})
        refuse_unknown(notes, path, value, keys, "key")
        return Section(notes, path, {key: value[key] for key in keys if key in value})

    def field(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def get(self, key: str) -> object:
        return self.values.get(key)

    def has(self, key: str) -> bool:
        """Whether `key` was given a value other than null."""
        return self.values.get(key) is not None

    def section(self, key: str, keys: Sequence[str]) -> Section:
        return Section.open(self.notes, self.field(key), self.get(key), keys)

    def refuse(self, key: str, message: str) -> None:
        self.notes.refuse(self.field(key), self.get(key), message)

    def unavailable(self, key: str, message: str) -> None:
        """Refuse a value of `key` that a later version will accept."""
        if self.has(key):
            self.refuse(key, f"{message} Leave {key} out, or null.")

    def number(self, key: str, bounds: Bounds, remedy: str = "") -> float | None:
        """The number under `key`; None when it is null or wrong."""
        if not self.has(key):
            return None
        try:
            return read_number(self.get(key), bounds)
        except BadValue as bad:
            self.refuse(key, f"{bad.message} {remedy}".strip())
            return None

    def integer(self, key: str, bounds: Bounds, remedy: str = "") -> int | None:
        """The whole number under `key`; None when it is null or wrong."""
        if not self.has(key):
            return None
        try:
            return read_integer(self.get(key), bounds)
        except BadValue as bad:
            self.refuse(key, f"{bad.message} {remedy}".strip())
            return None

    def boolean(self, key: str) -> bool | None:
        value = self.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.refuse(key, "must be true or false.")
        return None

    def option(self, key: str, options: Sequence[_T]) -> _T | None:
        """The one of `options` under `key`; None when it is null or wrong."""
        value = self.get(key)
        if value is None:
            return None
        for option in options:
            if isinstance(value, str) and value == option:
                return option
        hint = nearest(value, options) if isinstance(value, str) else ""
        self.refuse(key, f"must be one of {', '.join(options)}.{hint}")
        return None


def refuse_unknown(notes: Notes, path: str, given: Mapping[str, object], valid: Sequence[str], noun: str) -> None:
    """Refuse every key of `given` that is not in `valid`, naming the valid ones and the nearest."""
    listed = ", ".join(valid)
    unknown: list[object] = [key for key in given if key not in valid]
    for key in unknown[:_MAX_UNKNOWN_KEYS]:
        if isinstance(key, str):
            name = quoted(key)[1:-1]
            message = f"There is no {noun} {quoted(key)} here.{nearest(key, valid)} There are: {listed}."
            notes.refuse(f"{path}.{name}" if path else name, given[key], message)
        else:
            notes.refuse(path, key, f"The {noun} {quoted(key)} is not text. There are: {listed}.")
    if len(unknown) > _MAX_UNKNOWN_KEYS:
        notes.refuse(path, None, f"{len(unknown) - _MAX_UNKNOWN_KEYS} more unknown {noun}s. There are: {listed}.")
