"""Parameters that exist only where another one has certain values (`when`); pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range
from tuner.spec_problems import Notes, nearest, quoted
from tuner.spec_space import contains
from tuner.spec_values import is_among


def condition_of(parameter: Parameter) -> Condition | None:
    """When the parameter exists; None: always."""
    return None if isinstance(parameter, Fixed) else parameter.when


def is_active(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether the parameter exists beside `values`, which lack its parent where that does not exist."""
    when = condition_of(parameter)
    return when is None or (when.parent in values and is_among(values[when.parent], when.values))


def parents_first(space: Mapping[str, Parameter]) -> list[str]:
    """The names of `space`, each after the one that it depends on, else in their order."""
    names: dict[str, None] = {}
    for name in space:
        chain = [name]
        while (when := condition_of(space[chain[-1]])) is not None:
            chain.append(when.parent)
        names.update(dict.fromkeys(reversed(chain)))
    return list(names)


def active(space: Mapping[str, Parameter], values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` without those of parameters that do not exist beside the others."""
    kept: dict[str, Any] = {}
    for name in parents_first(space):
        if name in values and is_active(space[name], kept):
            kept[name] = values[name]
    return {name: value for name, value in values.items() if name in kept}


def check_conditions(notes: Notes, space: Mapping[str, Parameter]) -> bool:
    """Whether every condition can be told; refuses what depends on nothing, on itself, or on what cannot be."""
    before = len(notes.problems)
    for name, parameter in space.items():
        when = condition_of(parameter)
        if when is not None:
            _check(notes, space, name, when)
    return len(notes.problems) == before


def _check(notes: Notes, space: Mapping[str, Parameter], name: str, when: Condition) -> None:
    where = f"search.{name}.when"
    parent = space.get(when.parent)
    if parent is None:
        others = [other for other in space if other != name]
        hint = nearest(when.parent, others)
        message = f"There is no parameter {quoted(when.parent)}.{hint} There are: {', '.join(others) or 'no others'}."
        notes.refuse(where, when.parent, message)
    elif name in (chain := _chain(space, name)):
        message = f"depends on itself ({' on '.join([name, *chain])}); one of them has to exist always."
        notes.refuse(where, when.parent, message)
    elif isinstance(parent, Range) and not parent.integer:
        message = f"{when.parent} is a range of numbers; a condition needs choices, or a whole-number range."
        notes.refuse(where, when.parent, message)
    else:
        for value in when.values:
            if not contains(parent, value):
                notes.refuse(f"{where}.{when.parent}", value, f"{when.parent} is never that: {_takes(parent)}.")


def _chain(space: Mapping[str, Parameter], name: str) -> list[str]:
    """What `name` depends on, and what that does, up to the first that comes again."""
    found: list[str] = []
    when = condition_of(space[name])
    while when is not None and when.parent in space and when.parent not in found:
        found.append(when.parent)
        when = condition_of(space[when.parent])
    return found


def _takes(parent: Parameter) -> str:
    if isinstance(parent, Choices):
        return f"it is one of {', '.join(quoted(value)[:40] for value in parent.values[:12])}"
    if isinstance(parent, Range):
        return f"it is a whole number from {int(parent.low)} to {int(parent.high)}"
    return f"it is always {quoted(parent.value)}"
