"""Parameters of the user's own code: names that only it knows, values that only it understands."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Mapping
from typing import Any

from tuner.command import IDENTIFIER, TemplateError, placeholders
from tuner.conditions import active, check_conditions, condition_of
from tuner.jobspec import Choices, Fixed, Parameter, Range, UserCode
from tuner.spec_numbers import plain, read_integer, read_number
from tuner.spec_problems import BadValue, Notes, kind, nearest, quoted
from tuner.spec_ranges import Entry
from tuner.spec_space import middle, read_space, with_baseline
from tuner.spec_values import AnyValue, bounds_of, read_value
from workloads.manifest import Manifest, ParameterInfo

RESERVED = {
    "micro_batch": "it follows from batch_size; search batch_size, and use {micro_batch} in the command",
    "accumulation": "it follows from batch_size; search batch_size, and use {accumulation} in the command",
    "processes": "it is resources.processes, for all trials; use {processes} in the command",
    "seed": "every run gets its own; it is in the configuration, and {seed} in a command",
    "run_dir": "every run gets a folder of its own; it is X5TUNE_RUN_DIR, and {run_dir} in a command",
}
USUALLY_NUMBERS = frozenset(
    ("weight_decay", "loss_scale", "grad_clip", "warmup", "lr_min", "beta1", "beta2", "eps", "momentum", "dropout",
     "label_smoothing", "focal_gamma")
)  # fmt: skip
FROM_BATCH_SIZE = frozenset(("batch_size", "micro_batch", "accumulation"))
BATCH_SIZES = (16, 32, 64, 128, 256)
MAX_PARAMETERS = 200
MAX_NAME_CHARS = 100
MAX_LISTED = 12
_SUMMARY = "A parameter of the user's own code."
_EXAMPLE = "lr: {low: 1e-5, high: 1e-2, log: true}"


def read_own_space(
    notes: Notes, search: object, baseline: object, used: Collection[str] = ()
) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """The parameters that `search` and `baseline` name, and the baseline's value of each.

    A batch size that is `used` in the command and named nowhere is searched all the same.

    What only the baseline names is fixed there. What the baseline does not name starts in the middle of its range, or
    at the first of its choices; a warning says which those are.
    """
    asked = _entries(notes, "search", search)
    start = _entries(notes, "baseline", baseline)
    if FROM_BATCH_SIZE.intersection(used) and "batch_size" not in {**asked, **start}:
        asked["batch_size"] = {"choices": list(BATCH_SIZES)}
        start["batch_size"] = BATCH_SIZES[len(BATCH_SIZES) // 2]
        listed = ", ".join(map(str, BATCH_SIZES))
        message = f"The command uses it and search does not name it, so {listed} are tried, from {start['batch_size']}."
        notes.warn("search.batch_size", f"{message} Give the choices that fit your memory.")
    if not asked and notes.is_clean("search"):
        notes.refuse(
            "search", search, f"names no parameter; give at least one to search or to fix, such as {_EXAMPLE}."
        )
    space: dict[str, Parameter] = {}
    values: dict[str, Any] = {}
    guessed: dict[str, str] = {}
    for name in {**asked, **start}:
        parameter = _parameter(notes, name, asked[name]) if name in asked else None
        if name in asked and parameter is None:
            continue
        if name in start:
            try:
                values[name] = _baseline_value(name, start[name], parameter)
            except BadValue as bad:
                notes.refuse(f"baseline.{name}", start[name], bad.message)
                continue
            space[name] = _joined(notes, name, parameter, values[name])
        elif parameter is not None:
            space[name], values[name] = parameter, _first_value(parameter)
            if not isinstance(parameter, Fixed):
                guessed[name] = f"{name} = {_brief(values[name])}"
    values = _existing(notes, space, values, start)
    guessed = {name: text for name, text in guessed.items() if name in values}
    if guessed:
        missing = f"names no value for what is searched here, so it starts at {_some(list(guessed.values()))}"
        notes.warn("baseline", f"{missing}: the middle of a range, the first of the choices. Give what you use today.")
    return space, values


def read_class_space(
    notes: Notes, search: object, baseline: object, manifest: Manifest
) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """As of a built-in; a warning says which baseline values are not the user's."""
    space, values = read_space(notes, search, baseline, manifest)
    given = baseline if isinstance(baseline, Mapping) else {}
    values = _existing(notes, space, values, given)
    searched = [name for name, parameter in space.items() if name in values and not isinstance(parameter, Fixed)]
    guessed = [f"{name} = {_brief(values[name])}" for name in searched if name not in given]
    if guessed:
        notes.warn("baseline", f"names no value for {_some(guessed)}. Give what you use today: it has to be beaten.")
    return space, values


def _existing(
    notes: Notes, space: Mapping[str, Parameter], values: dict[str, Any], given: Mapping[str, object]
) -> dict[str, Any]:
    """The baseline's `values` of parameters that exist beside the others; refuses one of another that was `given`."""
    if not (notes.is_clean("search", "baseline") and check_conditions(notes, space)):
        return values
    existing = active(space, values)
    for name in values.keys() - existing.keys():
        if name in given:
            when = condition_of(space[name])
            what = f"does not exist in the baseline, where {when.parent} is" if when else "does not exist"
            parent = quoted(existing.get(when.parent, "left out itself")) if when else ""
            notes.refuse(f"baseline.{name}", given[name], f"{what} {parent} (search.{name}.when): leave it out.")
    return existing


def used_placeholders(code: UserCode) -> set[str]:
    """The placeholders of a command, as far as they can be read."""
    used: set[str] = set()
    for argument in code.argv:
        with contextlib.suppress(TemplateError):
            used.update(placeholders(argument))
    return used


def check_placeholders(notes: Notes, code: UserCode, space: Mapping[str, Parameter], has_confirmation: bool) -> None:
    """Refuse placeholders that nothing fills, and searched parameters that never reach the command."""
    derived = ("micro_batch", "accumulation") if "batch_size" in space else ()
    known = [*space, *derived, "seed", "processes", "run_dir"]
    used: set[str] = set()
    for index, argument in enumerate(code.argv):
        where = f"workload.command.{index}"
        try:
            names = placeholders(argument)
        except TemplateError as error:
            notes.refuse(where, argument, f"{error}.")
            continue
        used.update(names)
        apart = [name for name in names if name in space and condition_of(space[name]) is not None]
        if apart and (index == 0 or len(set(names)) > 1):
            left_out = f"{{{apart[0]}}} does not always exist, and its argument is left out then"
            notes.refuse(where, argument, f"{left_out}: give it one of its own.")
        for name in [name for name in dict.fromkeys(names) if name not in known]:
            notes.refuse(where, argument, _unknown(name, known))
    if not notes.is_clean("workload"):
        return
    used.discard("processes")  # is no parameter
    if not used:
        message = "has no placeholder such as {lr}, so the script is taken to read its values from X5TUNE_CONFIG."
        notes.warn("workload.command", f"The command {message}")
        return
    if used & {"micro_batch", "accumulation"}:
        used.add("batch_size")
    for name, parameter in space.items():
        if name in used:
            continue
        if not isinstance(parameter, Fixed):
            remedy = f"put {{{name}}} where it belongs, or fix it with a plain value"
            notes.refuse(f"search.{name}", None, f"is searched, but the command does not use it: {remedy}.")
        elif name != "batch_size":
            notes.warn(f"search.{name}", f"The command does not use it: put {{{name}}} where it belongs.")
    if "seed" not in used and has_confirmation:
        message = "The command does not use {seed}: confirmation compares runs on different seeds, so add it"
        notes.warn("workload.command", f"{message} where your script takes one.")


def _unknown(name: str, known: list[str]) -> str:
    listed = _some(known)
    hint = nearest(name, known)
    return f"There is no parameter for {{{name[:50]}}}.{hint} Give it in search, or use one of these: {listed}."


def _entries(notes: Notes, path: str, given: object) -> dict[str, object]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        notes.refuse(
            path, given, f"must be a mapping of parameters, such as {{{_EXAMPLE}}}, and this is {kind(given)}."
        )
        return {}
    if len(given) > MAX_PARAMETERS:
        notes.refuse(path, None, f"has {len(given)} parameters; at most {MAX_PARAMETERS} are allowed.")
        return {}
    entries: dict[str, object] = {}
    for name, value in given.items():
        if not isinstance(name, str):
            notes.refuse(path, name, f"The parameter {quoted(name)} is not text; put it in quotes.")
        elif name in RESERVED:
            notes.refuse(f"{path}.{name}", value, f"{name} cannot be given here: {RESERVED[name]}.")
        elif len(name) > MAX_NAME_CHARS or not IDENTIFIER.fullmatch(name):
            notes.refuse(f"{path}.{quoted(name)[1:-1]}", value, _bad_name(name))
        else:
            entries[name] = value
    return entries


def _bad_name(name: str) -> str:
    better = re.sub(r"[^A-Za-z0-9_]+", "_", name[:MAX_NAME_CHARS])
    hint = f" Write {better}." if IDENTIFIER.fullmatch(better) and better.strip("_") else ""
    return f"{quoted(name)} cannot be a parameter's name: use letters, digits and underscores.{hint}"


def _info(name: str) -> ParameterInfo:
    if name == "lr":
        return ParameterInfo("lr", "number", _SUMMARY, 1.0, 0.0, exclusive_low=True)
    if name == "batch_size":
        return ParameterInfo("batch_size", "integer", _SUMMARY, 1, 1)
    return AnyValue(name, "number", _SUMMARY, None, is_usually_number=name in USUALLY_NUMBERS)


def _parameter(notes: Notes, name: str, value: object) -> Parameter | None:
    return Entry(notes, f"search.{name}", _info(name), value, Fixed(None), may_depend=name != "batch_size").read()


def _baseline_value(name: str, given: object, parameter: Parameter | None) -> Any:
    if isinstance(given, Mapping):
        raise BadValue("must be one value: the baseline is a single configuration, not a search.")
    info = _info(name)
    if isinstance(parameter, Range):
        return read_integer(given, bounds_of(info)) if parameter.integer else read_number(given, bounds_of(info))
    return read_value(info, given)


def _joined(notes: Notes, name: str, parameter: Parameter | None, value: Any) -> Parameter:
    if parameter is not None:
        return with_baseline(notes, name, parameter, value, is_asked=True)
    return Choices((value,)) if isinstance(value, list) else Fixed(value)  # a plain list in search would be refused


def _first_value(parameter: Parameter) -> Any:
    if isinstance(parameter, Fixed):
        return parameter.value
    if isinstance(parameter, Choices):
        return parameter.values[0]
    number = min(max(middle(parameter), parameter.low), parameter.high)
    return round(number) if parameter.integer else number


def _some(words: list[str]) -> str:
    more = f" and {len(words) - MAX_LISTED} more" if len(words) > MAX_LISTED else ""
    return ", ".join(word[:40] for word in words[:MAX_LISTED]) + more


def _brief(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return plain(value) if is_number else quoted(value)[:40]
