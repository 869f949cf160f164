"""One entry of `search`: a range, choices, or a plain value that fixes the parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range
from tuner.spec_numbers import plain, read_integer, read_number
from tuner.spec_problems import BadValue, Notes, kind
from tuner.spec_section import Section
from tuner.spec_values import AnyValue, bounds_of, identity, read_value
from workloads.manifest import ParameterInfo

RANGE_KEYS = ("low", "high", "log", "int", "or_zero")
SEARCH_KEYS = (*RANGE_KEYS, "choices", "when")
MAX_CHOICES = 1000
_MAX_BAD_CHOICES = 10
_WIDE = 1000.0
_LOG_LOW, _LOG_HIGH = 1e-100, 1e100  # so that no sampler underflows


@dataclass(frozen=True, slots=True)
class Entry:
    """What `search` says about one parameter, and what it is when `search` says nothing."""

    notes: Notes
    field: str
    info: ParameterInfo
    value: object
    default: Parameter
    may_depend: bool = False

    def read(self) -> Parameter | None:
        """The parameter, or None when something was refused. A range with one bound takes the rest from the default."""
        before = len(self.notes.problems)
        parameter = self._read()
        return parameter if len(self.notes.problems) == before else None

    def _read(self) -> Parameter | None:
        if not isinstance(self.value, Mapping) or self._is_fixed_mapping(self.value):
            try:
                if isinstance(self.value, list | tuple) and isinstance(self.info, AnyValue):
                    one = "to give the list itself as the one value, {choices: [[...]]}"
                    raise BadValue(f"is a list; to search these values write {{choices: [...]}}, {one}.")
                return Fixed(read_value(self.info, self.value))
            except BadValue as bad:
                self.notes.refuse_bad(self.field, self.value, bad)
                return None
        section = Section.open(self.notes, self.field, self.value, (*SEARCH_KEYS, *self.info.keys))
        when = self._when(section)
        stray = [key for key in self.info.keys if key in section.values]
        if stray:
            both = f"mixes a fixed value ({', '.join(stray)}) with a range or choices; keep one of the two."
            self.notes.refuse(self.field, self.value, both)
            return None
        found = self._choices(section) if "choices" in section.values else self._range(section)
        return found if found is None or when is None else replace(found, when=when)

    def _when(self, section: Section) -> Condition | None:
        """What the parameter depends on; whether there is such a parameter is checked by `tuner.conditions`."""
        given = section.get("when")
        if given is None:
            return None
        if not self.may_depend:
            why = (
                "batch_size always exists"
                if self.info.name == "batch_size"
                else "the training loop needs all of its own"
            )
            section.refuse("when", f"is for parameters of your own code; {why}. Leave when out.")
            return None
        if not isinstance(given, Mapping) or len(given) != 1 or not all(isinstance(name, str) for name in given):
            what = "must name one parameter and the values with which this one exists"
            several = isinstance(given, Mapping) and len(given) > 1
            more = " Put a second condition on that parameter." if several else ""
            section.refuse("when", f"{what}, {{optimizer: adamw}} or {{optimizer: [adamw, lamb]}}.{more}")
            return None
        ((parent, values),) = given.items()
        listed = tuple(values) if isinstance(values, list | tuple) else (values,)
        if not listed or any(isinstance(value, Mapping) for value in listed):
            section.refuse("when", f"must list plain values of {parent}.")
            return None
        return Condition(parent, listed)

    def _is_fixed_mapping(self, value: Mapping[str, object]) -> bool:
        return any(key in value for key in self.info.keys) and not any(key in value for key in SEARCH_KEYS)

    def _choices(self, section: Section) -> Choices | None:
        mixed = [key for key in RANGE_KEYS if key in section.values]
        if mixed:
            section.refuse("choices", f"cannot be combined with {', '.join(mixed)}: give choices, or low and high.")
            return None
        given = section.get("choices")
        if not isinstance(given, list | tuple):
            section.refuse("choices", f"must be a list such as [16, 32, 64], and this is {kind(given)}.")
            return None
        if not given:
            section.refuse("choices", "is empty; give at least one value, or leave the parameter out of search.")
            return None
        if len(given) > MAX_CHOICES:
            section.refuse("choices", f"has {len(given)} values; at most {MAX_CHOICES} are allowed. Use low and high.")
            return None
        return Choices(tuple(self._each_choice(given)))

    def _each_choice(self, given: list[object] | tuple[object, ...]) -> list[Any]:
        values: list[Any] = []
        seen: dict[object, int] = {}
        for index, choice in enumerate(given):
            where = f"{self.field}.choices.{index}"
            try:
                if isinstance(choice, Mapping):
                    raise BadValue("is a mapping, which cannot be a choice; fix it with a plain entry instead.")
                if isinstance(choice, list | tuple) and not isinstance(self.info, AnyValue):
                    raise BadValue("is a list inside the list; give plain values.")
                value = read_value(self.info, choice)
            except BadValue as bad:
                self.notes.refuse(where, choice, bad.message)
                if sum(p.field.startswith(f"{self.field}.choices.") for p in self.notes.problems) >= _MAX_BAD_CHOICES:
                    break
                continue
            first = seen.setdefault(identity(value), index)
            if first != index:
                self.notes.refuse(where, choice, f"is the same value as number {first} of this list; remove one.")
                break
            values.append(value)
        return values

    def _range(self, section: Section) -> Range | None:
        if self.info.type == "choice":
            listed = ", ".join(str(choice) for choice in self.info.choices)
            self.notes.refuse(self.field, self.value, f"has no range; write {{choices: [...]}} with some of {listed}.")
            return None
        is_partial = not (section.has("low") and section.has("high"))
        default = self.default if is_partial and isinstance(self.default, Range) else None
        integer = self._integer(section, default)
        low = self._bound(section, "low", integer, default.low if default else None)
        high = self._bound(section, "high", integer, default.high if default else None)
        log = _flag(section, "log", default is not None and default.log)
        or_zero = _flag(section, "or_zero", default is not None and default.or_zero and log)
        if low is None or high is None:
            return None
        inherited = " What is left out here is the workload's default." if default else ""
        if low >= high:
            message = f"low is {plain(low)} and high is {plain(high)}; low must be below high.{inherited}"
            section.refuse("low" if section.has("low") else "high", message)
            return None
        if log and low <= 0:
            message = "must be above 0 in a log range; raise it (or_zero: true also tries exactly 0), or drop log."
            section.refuse("low", message + inherited)
        elif log and (low < _LOG_LOW or high > _LOG_HIGH):
            remedy = f"a log range must lie between {plain(_LOG_LOW)} and {plain(_LOG_HIGH)}"
            self.notes.refuse(self.field, self.value, f"spans too much: {remedy}.")
        if or_zero:
            self._check_zero(section, log, integer)
        if section.get("log") is None and not log and low > 0 and high / low >= _WIDE:
            times = f"low and high are a factor of {plain(high / low)} apart"
            self.notes.warn(
                self.field, f"{times} and log is not given, so small values are hardly tried; add log: true."
            )
        return Range(low, high, log, integer, or_zero)

    def _integer(self, section: Section, default: Range | None) -> bool:
        given = section.boolean("int")
        if self.info.type == "integer":
            if given is False:
                section.refuse("int", f"cannot be false: {self.info.name} is always a whole number.")
            return True
        return bool(default and default.integer) if given is None else given

    def _bound(self, section: Section, key: str, integer: bool, default: float | None) -> float | None:
        if not section.has(key):
            if default is None:
                message = f"{key} is missing; a range needs low and high (or give choices, or a plain value)."
                self.notes.refuse(f"{self.field}.{key}", None, message)
            return default
        hard = bounds_of(self.info)
        try:
            return float(read_integer(section.get(key), hard)) if integer else read_number(section.get(key), hard)
        except BadValue as bad:
            section.refuse(key, bad.message)
            return None

    def _check_zero(self, section: Section, log: bool, integer: bool) -> None:
        if not log:
            section.refuse("or_zero", "goes with log: true only; without log, let low be 0.")
        if integer:
            section.refuse("or_zero", "does not go with whole numbers; without log, let low be 0.")
        hard = bounds_of(self.info)
        try:
            hard.check(0.0)
        except BadValue:
            section.refuse("or_zero", f"cannot be used: {self.info.name} must be {hard}.")


def _flag(section: Section, key: str, default: bool) -> bool:
    given = section.boolean(key)
    return default if given is None else given
