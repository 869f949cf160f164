"""One concrete value of one parameter, checked against what its workload declares."""

from __future__ import annotations

import contextlib
import importlib.util
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.spec_numbers import Bounds, read_integer, read_number
from tuner.spec_problems import BadValue, kind, nearest, quoted
from workloads.manifest import ParameterInfo
from workloads.parameters import LAMB_PACKAGE, LAMB_REMEDY

MAX_TEXT_CHARS = 10_000
MAX_ITEMS = 1000
MAX_DEPTH = 10


@dataclass(frozen=True, slots=True)
class AnyValue(ParameterInfo):
    """A parameter of the user's own code, of which nothing is known: any JSON value but a mapping.

    Where `is_usually_number`, text that spells a number is that number.
    """

    is_usually_number: bool = False


def bounds_of(info: ParameterInfo) -> Bounds:
    """Where the parameter's numbers are valid at all."""
    return Bounds(info.low, info.high, info.exclusive_low)


def read_value(info: ParameterInfo, value: object) -> Any:
    """`value` as the workload takes it: whole numbers as int, other numbers as float, text as it is.

    Raises `BadValue`; its `key` names the key at fault in a mapping such as `{steps: 4000, start: 1e-7}`.
    """
    if isinstance(info, AnyValue):
        return _plain_value(info, value)
    if value is None:
        if info.nullable:
            return None
        raise BadValue("must not be null here.")
    if info.type == "choice":
        return _choice(info, value)
    if isinstance(value, Mapping):
        return _mapping(info, value)
    if isinstance(value, list | tuple):
        raise BadValue("is a list; to search these values write {choices: [...]}.")
    if info.type == "number_or_choice" and isinstance(value, str) and value in info.choices:
        return value
    return read_scalar(info, value)


def read_scalar(info: ParameterInfo, value: object) -> float:
    """`value` as a number within the parameter's hard bounds: int for whole-number parameters, else float."""
    try:
        if info.type == "integer":
            return read_integer(value, bounds_of(info))
        return read_number(value, bounds_of(info))
    except BadValue as bad:
        words = [f"the word {word}" for word in info.choices if info.type == "number_or_choice"]
        extra = [*words, *(["null"] if info.nullable else [])]
        also = f" Also valid: {', '.join(extra)}." if extra else ""
        raise BadValue(f"{bad.message}{also}") from None


def identity(value: object) -> object:
    """A hashable stand-in: 1 and 1.0 are the same, 1 and True are not."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, Mapping):
        return ("mapping", tuple(sorted((str(key), identity(item)) for key, item in value.items())))
    return ("list", tuple(identity(item) for item in value)) if isinstance(value, list | tuple) else ("other", value)


def is_among(value: object, values: Iterable[object]) -> bool:
    """Whether `value` is one of `values`, told apart as JSON does."""
    return identity(value) in {identity(other) for other in values}


def _plain_value(info: AnyValue, value: object, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return read_integer(value)
    if isinstance(value, float):
        return read_number(value)
    if isinstance(value, str):
        return _own_text(info, value)
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise BadValue(f"has {len(value)} items; at most {MAX_ITEMS} are allowed.")
        if depth >= MAX_DEPTH:
            raise BadValue(f"is nested more than {MAX_DEPTH} lists deep.")
        return [_plain_value(info, item, depth + 1) for item in value]
    raise BadValue(f"must be a number, text, true, false, null or a list of these, and this is {kind(value)}.")


def _own_text(info: AnyValue, text: str) -> Any:
    if info.is_usually_number:
        with contextlib.suppress(BadValue):
            return read_number(text)
    if len(text) > MAX_TEXT_CHARS:
        raise BadValue(f"has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed.")
    if any(character == "\0" or unicodedata.category(character) == "Cs" for character in text):
        raise BadValue("has a character that neither an argument nor a file can hold.")
    return text


def _choice(info: ParameterInfo, value: object) -> Any:
    if isinstance(value, Mapping):
        raise BadValue("is a mapping; write one value, or {choices: [...]} to search several.")
    if isinstance(value, list | tuple):
        raise BadValue("is a list; to search these values write {choices: [...]}.")
    for choice in info.choices:
        if identity(choice) == identity(value):
            if info.name == "optimizer" and choice == "lamb" and is_without_lamb():
                raise BadValue(
                    f"{LAMB_REMEDY}. Or use one of {', '.join(str(c) for c in info.choices if c != 'lamb')}."
                )
            return choice
    listed = ", ".join(str(choice) for choice in info.choices)
    hint = nearest(value, (c for c in info.choices if isinstance(c, str))) if isinstance(value, str) else ""
    raise BadValue(f"must be one of {listed}.{hint}")


def _mapping(info: ParameterInfo, value: Mapping[str, object]) -> dict[str, float]:
    if info.type != "number_or_mapping":
        raise BadValue(f"must be a plain value, and this is {kind(value)}.")
    for key in value:
        if key not in info.keys:
            raise BadValue(f"There is no key {quoted(key)} here. There are: {', '.join(info.keys)}.")
    read: dict[str, float] = {}
    for key in info.keys:
        if key in value:
            read[key] = _part(key, value[key])
        elif key not in (*info.optional_keys, *info.one_of):
            raise BadValue(f"needs the key {key}.")
    if info.one_of and sum(key in read for key in info.one_of) != 1:
        raise BadValue(f"needs one of the keys {', '.join(info.one_of)}.")
    return read


def is_without_lamb() -> bool:
    """Whether trainings run here (torch is installed) that could not use LAMB."""
    return importlib.util.find_spec("torch") is not None and importlib.util.find_spec(LAMB_PACKAGE) is None


def _part(key: str, value: object) -> float:
    try:
        if key == "steps":
            return read_integer(value, Bounds(1))
        return read_number(value, Bounds(0.0, 1.0 if key == "fraction" else None, exclusive_low=key != "start"))
    except BadValue as bad:
        raise BadValue(bad.message, key, value) from None
