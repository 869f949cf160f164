"""The search space and the baseline: every parameter of the workload, searched or fixed, and where to start."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tuner.jobspec import Choices, Fixed, Parameter, Range
from tuner.spec_numbers import plain
from tuner.spec_problems import BadValue, Notes, kind, quoted
from tuner.spec_ranges import Entry
from tuner.spec_section import refuse_unknown
from tuner.spec_values import AnyValue, identity, is_among, read_value
from workloads.manifest import Manifest, ParameterInfo


def read_space(
    notes: Notes, search: object, baseline: object, manifest: Manifest
) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """All parameters of the workload, and the baseline's value of each.

    What `search` leaves out takes the workload's default search. A parameter that nobody searches is fixed: at what
    the user's baseline says, else the workload's baseline, else its default. A baseline value that the user gave is
    kept exactly; one that the user did not give moves to the nearest value inside the space.
    """
    asked = _entries(notes, "search", search, manifest)
    start = _entries(notes, "baseline", baseline, manifest)
    space: dict[str, Parameter] = {}
    values: dict[str, Any] = {}
    for name, info in manifest.parameters.items():
        default = default_parameter(manifest, info)
        parameter: Parameter | None = default
        if name in asked:
            may_depend = isinstance(info, AnyValue)
            parameter = Entry(notes, f"search.{name}", info, asked[name], default, may_depend).read()
        if name in start:
            value, is_valid = _baseline_value(notes, info, start[name])
            if parameter is not None and is_valid:
                parameter = with_baseline(notes, name, parameter, value, name in asked)
        else:
            value = read_value(info, manifest.baseline.get(name, info.default))
            value = value if parameter is None else nearest_inside(parameter, value)
        space[name] = default if parameter is None else parameter
        values[name] = value
    return space, values


def default_parameter(manifest: Manifest, info: ParameterInfo) -> Parameter:
    """What the workload itself searches, or the value at which it leaves the parameter."""
    if info.name not in manifest.search:
        return Fixed(read_value(info, manifest.baseline.get(info.name, info.default)))
    notes = Notes()
    nothing = Fixed(info.default)
    given, may_depend = manifest.search[info.name], isinstance(info, AnyValue)
    parameter = Entry(notes, f"search.{info.name}", info, given, nothing, may_depend).read()
    if parameter is None:
        raise ValueError(f"the manifest of {manifest.name} is invalid: {notes.problems}")
    return parameter


def contains(parameter: Parameter, value: object) -> bool:
    """Whether the search could come to `value`."""
    if isinstance(parameter, Fixed):
        return identity(parameter.value) == identity(value)
    if isinstance(parameter, Choices):
        return is_among(value, parameter.values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if parameter.or_zero and value == 0:
        return True
    return parameter.low <= value <= parameter.high and (not parameter.integer or float(value).is_integer())


def nearest_inside(parameter: Parameter, value: Any) -> Any:
    """`value` if the search could come to it, else the nearest that it could; the middle where nothing is near."""
    if isinstance(parameter, Fixed):
        return parameter.value
    if contains(parameter, value):
        return value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(parameter, Choices):
        numbers = [c for c in parameter.values if isinstance(c, int | float) and not isinstance(c, bool)]
        if is_number and numbers:
            return min(numbers, key=lambda number: abs(number - value))
        return parameter.values[0]
    number = min(max(value, parameter.low), parameter.high) if is_number else middle(parameter)
    return round(number) if parameter.integer else float(number)


def space_size(space: Mapping[str, Parameter]) -> int | None:
    """How many configurations there are; None when a continuous range makes them infinite."""
    dependent: dict[str | None, list[str]] = {}
    for name, parameter in space.items():
        parent = None if isinstance(parameter, Fixed) or parameter.when is None else parameter.when.parent
        dependent.setdefault(parent, []).append(name)
    return _product(_size(space, dependent, name) for name in dependent.get(None, []))


def _size(space: Mapping[str, Parameter], dependent: Mapping[str | None, list[str]], name: str) -> int | None:
    """How many ways there are to choose one parameter and those that exist with it."""
    parameter = space[name]
    below = [(space[child], _size(space, dependent, child)) for child in dependent.get(name, [])]
    conditions = [(child.when, size) for child, size in below if not isinstance(child, Fixed) and child.when]
    if isinstance(parameter, Range):
        if not parameter.integer:
            return None
        named = {value for when, _ in conditions for value in when.values if contains(parameter, value)}
        total = int(parameter.high) - int(parameter.low) + 1 - len(named)
        values: Iterable[Any] = named
    else:
        total = 0
        values = parameter.values if isinstance(parameter, Choices) else (parameter.value,)
    for value in values:
        ways = _product(size for when, size in conditions if is_among(value, when.values))
        if ways is None:
            return None
        total += ways
    return total


def _product(sizes: Iterable[int | None]) -> int | None:
    product = 1
    for size in sizes:
        if size is None:
            return None
        product *= size
    return product


def _entries(notes: Notes, path: str, given: object, manifest: Manifest) -> dict[str, object]:
    """The known parameters in `given`. Null means "not given", but is a value of nullable parameters."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        notes.refuse(path, given, f"must be a mapping of parameters, such as {{lr: 0.001}}, and this is {kind(given)}.")
        return {}
    refuse_unknown(notes, path, given, list(manifest.parameters), "parameter")
    known = {name: given[name] for name in manifest.parameters if name in given}
    return {k: v for k, v in known.items() if v is not None or manifest.parameters[k].nullable}


def _baseline_value(notes: Notes, info: ParameterInfo, given: object) -> tuple[Any, bool]:
    try:
        if isinstance(given, Mapping) and not any(key in given for key in info.keys):
            raise BadValue("must be one value: the baseline is a single configuration, not a search.")
        return read_value(info, given), True
    except BadValue as bad:
        notes.refuse_bad(f"baseline.{info.name}", given, bad)
        return info.default, False


def with_baseline(notes: Notes, name: str, parameter: Parameter, value: Any, is_asked: bool) -> Parameter:
    """The parameter once the user's baseline `value` is known; warns where the two disagree."""
    if contains(parameter, value):
        return parameter
    field = f"baseline.{name}"
    if isinstance(parameter, Choices):
        notes.warn(field, f"{quoted(value)} is not among the choices in search.{name} and was added to them.")
        return replace(parameter, values=(*parameter.values, value))
    if isinstance(parameter, Range):
        span = f"{plain(parameter.low)} to {plain(parameter.high)}"
        notes.warn(field, f"{quoted(value)} is outside search.{name} ({span}): tried as the baseline, never again.")
        return parameter
    if is_asked:
        fixed = quoted(parameter.value)
        notes.warn(field, f"The baseline has {quoted(value)}, but search.{name} fixes all other trials at {fixed}.")
        return parameter
    return Fixed(value)


def middle(parameter: Range) -> float:
    """The geometric centre of a log range, the arithmetic one of any other."""
    if parameter.log:
        return math.exp((math.log(parameter.low) + math.log(parameter.high)) / 2)
    return parameter.low / 2 + parameter.high / 2
