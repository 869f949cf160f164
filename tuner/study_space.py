"""The search space of a job as Optuna sees it: values on their way into the study and back, and what exists when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.conditions import condition_of, is_active, parents_first
from tuner.jobspec import Choices, Fixed, Parameter, Range
from tuner.spec_space import space_size

ZERO_SHARE = 0.1  # prior probability of 0 in an `or_zero` range


class StudySpace:
    """What Optuna searches. A configuration "as stored" holds the searched parameters that exist in it, no others."""

    def __init__(self, space: Mapping[str, Parameter]) -> None:
        self._space = space
        self._searched = {n: p for n in parents_first(space) if not isinstance(p := space[n], Fixed)}
        self.distributions: dict[str, BaseDistribution] = {n: distribution(p) for n, p in self._searched.items()}
        self.size = space_size(space)
        self._is_conditional = any(condition_of(parameter) is not None for parameter in self._searched.values())

    def ask(self, study: optuna.Study) -> optuna.Trial:
        """A new trial; what does not exist in its configuration is not in the study either."""
        if not self._is_conditional:
            return study.ask(self.distributions)
        trial = study.ask()
        stored: dict[str, Any] = {}
        for name, one in self.distributions.items():
            if self._exists(name, stored):
                stored[name] = suggest(trial, name, one)
        return trial

    def to_study(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """A configuration as stored."""
        return {name: to_study(p, parameters[name]) for name, p in self._searched.items() if name in parameters}

    def from_study(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """A stored configuration with all parameters that exist in it, fixed ones included."""
        return {
            name: p.value if isinstance(p, Fixed) else from_study(p, stored[name])
            for name, p in self._space.items()
            if isinstance(p, Fixed) or name in stored
        }

    def existing(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The part of a configuration that exists."""
        kept: dict[str, Any] = {}
        for name in self._searched:
            if name in stored and self._exists(name, kept):
                kept[name] = stored[name]
        return kept

    def contains(self, stored: Mapping[str, Any]) -> bool:
        """Whether a stored configuration is one of the space; a baseline outside a range is not."""
        kept: dict[str, Any] = {}
        for name, one in self.distributions.items():
            if not self._exists(name, kept):
                continue
            if name not in stored or not one._contains(one.to_internal_repr(stored[name])):
                return False
            kept[name] = stored[name]
        return len(kept) == len(stored)

    def configurations(self) -> list[dict[str, Any]]:
        """Every configuration of a finite space as stored, in a fixed order."""
        found: list[dict[str, Any]] = [{}]
        for name, one in self.distributions.items():
            values = one.choices if isinstance(one, CategoricalDistribution) else _whole_numbers(one)
            found = [
                {**stored, name: value} if exists else stored
                for stored in found
                for exists in [self._exists(name, stored)]
                for value in (values if exists else [None])
            ]
        return found

    def _exists(self, name: str, stored: Mapping[str, Any]) -> bool:
        """Whether a parameter exists beside those before it."""
        when = condition_of(self._space[name])
        if when is None:
            return True
        parent = self._space[when.parent]
        if isinstance(parent, Fixed):
            return is_active(self._space[name], {when.parent: parent.value})
        if when.parent not in stored:
            return False
        return is_active(self._space[name], {when.parent: from_study(parent, stored[when.parent])})


def distribution(parameter: Range | Choices) -> BaseDistribution:
    """The Optuna distribution of one searched parameter.

    `or_zero` extends a log range downwards by a tenth of the new width; what falls below `low` means 0. Choices that
    Optuna cannot store (lists) or tell apart (1 and True) are stored as JSON text.
    """
    if isinstance(parameter, Choices):
        return CategoricalDistribution(labels(parameter))
    if parameter.integer:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log)
    low = zero_edge(parameter) if parameter.or_zero else parameter.low
    return FloatDistribution(low, parameter.high, log=parameter.log)


def suggest(trial: optuna.Trial, name: str, one: BaseDistribution) -> Any:
    """Have the trial's sampler choose one parameter; what was queued for it is taken first."""
    if isinstance(one, CategoricalDistribution):
        return trial.suggest_categorical(name, one.choices)
    if isinstance(one, IntDistribution):
        return trial.suggest_int(name, one.low, one.high, log=one.log)
    assert isinstance(one, FloatDistribution)
    return trial.suggest_float(name, one.low, one.high, log=one.log)


def zero_edge(parameter: Range) -> float:
    """The lower end of an `or_zero` range as Optuna sees it."""
    return float(parameter.low * (parameter.low / parameter.high) ** (ZERO_SHARE / (1 - ZERO_SHARE)))


def labels(parameter: Choices) -> list[Any]:
    """What is stored for each choice; no two are equal to Optuna, for which 1 is True."""
    found: list[Any] = []
    for value in parameter.values:
        label = value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)
        while label in found:
            label = json.dumps(label)
        found.append(label)
    return found


def from_study(parameter: Range | Choices, stored: Any) -> Any:
    """The value that a trial runs with, from what Optuna stores."""
    if isinstance(parameter, Choices):
        return parameter.values[labels(parameter).index(stored)]
    return 0.0 if parameter.or_zero and stored < parameter.low else stored


def to_study(parameter: Range | Choices, value: Any) -> Any:
    """What Optuna stores for a value; the inverse of `from_study`."""
    if isinstance(parameter, Choices):
        position = next(n for n, choice in enumerate(parameter.values) if same_choice(choice, value))
        return labels(parameter)[position]
    return zero_edge(parameter) if parameter.or_zero and value < parameter.low else value


def same_choice(left: Any, right: Any) -> bool:
    """Equality that keeps True and 1 apart, in lists too."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_choice, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _whole_numbers(one: BaseDistribution) -> range:
    assert isinstance(one, IntDistribution)
    return range(one.low, one.high + 1, one.step)
