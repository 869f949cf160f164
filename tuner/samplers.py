"""Optuna samplers and pruners by name, and the sampler that never tries a finite space's configuration twice."""

from __future__ import annotations

import json
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from tuner.jobspec import OWN_SEARCH
from tuner.study_space import StudySpace

REDRAWS = 4  # a draw of the Gaussian process costs a fit, and would mostly repeat itself
ENUMERATED = 4096  # spaces up to this size are searched to the last configuration


class DistinctSampler(BaseSampler):
    """Draws from `inner` over the whole space; in a finite space never a configuration that was tried before."""

    def __init__(self, inner: BaseSampler, space: StudySpace, seed: int) -> None:
        self._inner = inner
        self._space = space
        self._random = random.Random(seed)

    def reseed_rng(self) -> None:
        self._inner.reseed_rng()
        self._random.seed()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space.distributions

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._inner.before_trial(study, trial)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self._inner.after_trial(study, trial, state, values)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self._space.size is None:
            return self._draw(study, trial)
        tried = {
            configuration_key(other.params)
            for other in study.get_trials(deepcopy=False)
            if other.number != trial.number and self._space.existing(other.params).keys() == other.params.keys()
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
        for name, one in self._space.distributions.items():
            if name not in params:
                params[name] = self._inner.sample_independent(study, trial, name, one)
        return self._space.existing(params)

    def _untried(self, tried: set[str]) -> dict[str, Any] | None:
        if self._space.size is None or self._space.size > ENUMERATED:
            return None
        left = [params for params in self._space.configurations() if configuration_key(params) not in tried]
        return self._random.choice(left) if left else None


class ProposedSampler(BaseSampler):
    """Hands on what somebody else has chosen: `proposed`, a configuration as stored. What that lacks is random."""

    def __init__(self, space: StudySpace, seed: int) -> None:
        self._space = space
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self.proposed: Mapping[str, Any] = {}

    def reseed_rng(self) -> None:
        self._random.reseed_rng()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return dict(self.proposed)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)


def configuration_key(params: Mapping[str, Any]) -> str:
    """One text per configuration as the study stores it."""
    return json.dumps(params, sort_keys=True, default=str)


def make_sampler(name: str, space: StudySpace, seed: int) -> BaseSampler:
    """The Optuna sampler called `name` (random, tpe, gp, cmaes, grid, or the one for our own search) over `space`."""
    if name == OWN_SEARCH:
        return ProposedSampler(space, seed)
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
