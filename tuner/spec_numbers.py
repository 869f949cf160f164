"""Numbers as people write them in YAML, JSON and on command lines.

YAML 1.1 reads `1e-5` as text, so text that is a plain decimal number counts as one everywhere. Nothing else does:
not hexadecimal, not `1_000`, not surrounding spaces, not `nan`, and not booleans.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from tuner.spec_problems import MAX_SAFE_INTEGER, BadValue, kind

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
_MAX_CHARS = 400


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a number must lie, both ends included unless `exclusive_low`; None: unbounded."""

    low: float | None = None
    high: float | None = None
    exclusive_low: bool = False

    def check(self, number: float) -> None:
        """Raise `BadValue` for a number outside."""
        if self.low is not None and (number < self.low or (self.exclusive_low and number == self.low)):
            raise BadValue(f"must be {self}.")
        if self.high is not None and number > self.high:
            raise BadValue(f"must be {self}.")

    def __str__(self) -> str:
        low = None if self.low is None else f"{'above' if self.exclusive_low else 'at least'} {plain(self.low)}"
        high = None if self.high is None else f"at most {plain(self.high)}"
        return " and ".join(part for part in (low, high) if part) or "any number"


ABOVE_0 = Bounds(0.0, exclusive_low=True)


def read_number(value: object, bounds: Bounds = Bounds()) -> float:
    """The finite number that `value` is or spells, inside `bounds`; raises `BadValue`."""
    number = _number(value)
    if not math.isfinite(number):
        raise BadValue("must be a finite number, not nan or infinity and not beyond 1.8e308.")
    bounds.check(number)
    return number


def read_integer(value: object, bounds: Bounds = Bounds()) -> int:
    """The whole number that `value` is or spells (40, 40.0, "40"), inside `bounds`; raises `BadValue`."""
    if isinstance(value, int) and not isinstance(value, bool):
        whole = value
    elif isinstance(value, str) and _WHOLE.fullmatch(value):
        whole = int(value)
    else:
        number = read_number(value)
        if not number.is_integer():
            raise BadValue("must be a whole number.")
        whole = int(number)
    if abs(whole) > MAX_SAFE_INTEGER:
        raise BadValue("is too large: whole numbers go up to 2^53.")
    bounds.check(whole)
    return whole


def plain(number: float) -> str:
    """A number for a sentence: 2, 0.001, 1e-05."""
    if abs(number) < 1e16 and float(number).is_integer():
        return str(int(number))
    return f"{number:.6g}"


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadValue(f"must be a number such as 0.001 or 1e-3, and this is {kind(value)}.")
    if isinstance(value, str):
        if len(value) > _MAX_CHARS or not _DECIMAL.fullmatch(value):
            raise BadValue("must be a number such as 0.001 or 1e-3, and this text is not one.")
        return float(value)
    try:
        return float(value)
    except OverflowError:
        return math.inf
