"""Optuna samplers and pruners by name, and the sampler that never tries a finite space's configuration twice."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tuner.jobspec import Choices, Range

REDRAWS = 4  # a draw of the Gaussian process costs a fit, and would mostly repeat itself
ENUMERATED = 4096  # spaces up to this size are searched to the last configuration
ZERO_SHARE = 0.1  # prior probability of 0 in an `or_zero` range


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


def space_size(distributions: Mapping[str, BaseDistribution]) -> int | None:
    """How many configurations there are; None when a parameter is continuous."""
    sizes = []
    for one in distributions.values():
        if isinstance(one, CategoricalDistribution):
            sizes.append(len(one.choices))
        elif isinstance(one, IntDistribution):
            sizes.append((one.high - one.low) // one.step + 1)
        else:
            return None
    return math.prod(sizes)


class DistinctSampler(BaseSampler):
    """Draws from `inner` over the whole space; in a finite space never a configuration that was tried before."""

    def __init__(self, inner: BaseSampler, space: Mapping[str, BaseDistribution], seed: int) -> None:
        self._inner = inner
        self._space = dict(space)
        self._random = random.Random(seed)
        self._size = space_size(space)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()
        self._random.seed()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._inner.after_trial(study, trial, state, values)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._size is None:
            return self._draw(study, trial)
        tried = {
            configuration_key(other.params)
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number and set(other.params) == set(self._space)
        }
        for _ in range(REDRAWS):
            params = self._draw(study, trial)
            if configuration_key(params) not in tried:
                return params
        return self._untried(tried) or params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def _draw(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        relative = self._inner.infer_relative_search_space(study, trial)
        params = dict(self._inner.sample_relative(study, trial, relative))
        for name, one in self._space.items():
            if name not in params:
                params[name] = self._inner.sample_independent(study, trial, name, one)
        return params

    def _untried(self, tried: set[str]) -> dict[str, Any] | None:
        if self._size is None or self._size > ENUMERATED:
            return None
        left = [params for params in enumerate_space(self._space) if configuration_key(params) not in tried]
        return self._random.choice(left) if left else None


def enumerate_space(space: Mapping[str, BaseDistribution]) -> list[dict[str, Any]]:
    """Every configuration of a finite space, in a fixed order."""
    found: list[dict[str, Any]] = [{}]
    for name, one in space.items():
        if isinstance(one, CategoricalDistribution):
            values: Sequence[Any] = one.choices
        else:
            assert isinstance(one, IntDistribution)
            values = range(one.low, one.high + 1, one.step)
        found = [{**params, name: value} for params in found for value in values]
    return found


def configuration_key(params: Mapping[str, Any]) -> str:
    """One text per configuration as the study stores it."""
    return json.dumps(params, sort_keys=True, default=str)


def is_inside(params: Mapping[str, Any], space: Mapping[str, BaseDistribution]) -> bool:
    """Whether a stored configuration belongs to the space; a baseline outside a range does not."""
    return set(params) == set(space) and all(d._contains(d.to_internal_repr(params[n])) for n, d in space.items())


def make_sampler(name: str, space: Mapping[str, BaseDistribution], seed: int) -> BaseSampler:
    """The Optuna sampler called `name` (random, tpe, gp, cmaes, grid) over `space`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return DistinctSampler(_inner_sampler(name, seed), space, seed)


def _inner_sampler(name: str, seed: int) -> BaseSampler:
    if name == "tpe":
        return optuna.samplers.TPESampler(multivariate=True, constant_liar=True, n_startup_trials=8, seed=seed)
    if name == "gp":
        return optuna.samplers.GPSampler(seed=seed, n_startup_trials=8)
    if name == "cmaes":
        return optuna.samplers.CmaEsSampler(seed=seed)
    # A grid is what DistinctSampler does with random draws in a finite space: every configuration, each once.
    return optuna.samplers.RandomSampler(seed=seed)


def make_pruner(name: str, reports: int) -> BasePruner:
    """The Optuna pruner called `name` for curves of `reports` points.

    Nothing is dropped before a quarter of the horizon, because early ranks mislead.
    """
    quarter = max(1, math.ceil(reports / 4))
    median = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=quarter)
    if name == "median":
        return median
    if name == "percentile":
        return optuna.pruners.PercentilePruner(25.0, n_startup_trials=4, n_warmup_steps=quarter)
    if name == "halving":
        return optuna.pruners.SuccessiveHalvingPruner(min_resource=quarter, reduction_factor=2)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=quarter, max_resource=reports, reduction_factor=2)
    if name == "patient":
        return optuna.pruners.PatientPruner(median, patience=max(1, reports // 5))
    return optuna.pruners.NopPruner()
