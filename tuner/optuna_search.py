"""Our search for users of plain Optuna: a sampler and a pruner, each of use without the other.

    study = optuna.create_study(
        sampler=x5tune.FreezeThawSampler(last_step=50, seed=0), pruner=x5tune.FreezeThawPruner(last_step=50)
    )

Both keep nothing between calls but the seed: what they know is read from the study, so that it may be shared, resumed,
and worked on by many processes. Optuna cannot pause a trial, so this is the stop-only form of `tuner.freeze_thaw`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tuner.freeze_thaw import RUNGS, FreezeThaw
from tuner.jobspec import Choices, Parameter, Range
from tuner.spec_space import contains
from tuner.unit_space import Listed, UnitSpace

FEW_STEPS = 20
"""Ranges of up to so many steps are searched to the last value, each configuration once."""
TOLD = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)


class FreezeThawSampler(BaseSampler):
    """Proposes by a Gaussian process on how trials rank among those that came as far.

    `last_step` is the last step that the objective reports at, None when it reports nothing. Parameters that not every
    trial has, and those of the first trial, are drawn at random. One objective; any number of processes.
    """

    def __init__(self, last_step: int | None = None, *, seed: int | None = None) -> None:
        self._rungs = rungs_until(last_step)
        self._last_step = last_step
        self._seed = int(np.random.default_rng(seed).integers(2**31))
        self._random = RandomSampler(seed=self._seed)
        self._shared = IntersectionSearchSpace(include_pruned=True)

    def reseed_rng(self) -> None:
        """Each process of several draws numbers of its own."""
        self._random.reseed_rng()
        self._seed = int(np.random.default_rng().integers(2**31))

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,  # noqa: ARG002 - Optuna passes it by name
    ) -> dict[str, BaseDistribution]:
        return {name: one for name, one in self._shared.calculate(study).items() if not one.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        self._raise_error_if_multi_objective(study)
        if not search_space:
            return {}
        parameters = {name: parameter_of(one) for name, one in search_space.items()}
        search = FreezeThaw(UnitSpace(parameters), self._seed + trial.number, self._rungs, can_pause=False)
        for other in study.get_trials(deepcopy=False, states=TOLD):
            told = {name: on_its_step(search_space[name], v) for name, v in other.params.items() if name in parameters}
            if other.number == trial.number or not all(
                name in told and contains(parameter, told[name]) for name, parameter in parameters.items()
            ):
                continue
            is_running = other.state == TrialState.RUNNING
            number = search.add(told, values=self._values(study, other), is_over=not is_running)
            search.trials[number].is_running = is_running
        step = search.propose()
        if step is None:  # every configuration of a finite space has been tried
            return {}
        return {name: rounded(one, step.key[name]) for name, one in search_space.items()}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _values(self, study: optuna.Study, trial: FrozenTrial) -> list[float]:
        found = values_at_rungs(study, trial, self._rungs, self._last_step)
        if trial.state == TrialState.COMPLETE:
            assert trial.value is not None
            found += [signed(study, trial.value)] * (len(self._rungs) - len(found))
        return found


class FreezeThawPruner(BasePruner):
    """Stops a trial at a rung unless it is among the best that came there; before a quarter only the last quarter.

    `last_step` is the last step that the objective reports at; steps count from 0 or from 1. Nothing is stopped there.
    """

    def __init__(self, last_step: int) -> None:
        self._rungs = rungs_until(last_step)
        self._last_step = last_step

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        mine = values_at_rungs(study, trial, self._rungs, self._last_step)
        steps = sorted(trial.intermediate_values)
        before = sum(fraction * self._last_step <= steps[-2] + 1e-9 for fraction in self._rungs) if steps[1:] else 0
        if len(mine) <= before or len(mine) == len(self._rungs):
            return False  # no new rung, or the end
        others = [
            other
            for other in study.get_trials(deepcopy=False, states=TOLD)
            if other.number != trial.number and values_at_rungs(study, other, self._rungs, self._last_step)
        ]
        search = FreezeThaw(Listed(np.zeros((len(others) + 1, 1))), 0, self._rungs, can_pause=False)
        for index, other in enumerate(others):
            search.add(index, values=values_at_rungs(study, other, self._rungs, self._last_step), is_over=True)
        number = search.add(len(others), values=mine[:-1])
        return search.observe(number, mine[-1]) == "stop"


def rungs_until(last_step: int | None) -> tuple[float, ...]:
    """The rungs as fractions of the last step. Raises ValueError where that is no step."""
    if last_step is None:
        return (1.0,)
    if last_step < 1:
        raise ValueError(f"last_step = {last_step} must be 1 or more: the last step that the objective reports at.")
    return tuple(sorted({math.ceil(fraction * last_step - 1e-9) / last_step for fraction in RUNGS}))


def values_at_rungs(
    study: optuna.Study, trial: FrozenTrial, rungs: Sequence[float], last_step: int | None
) -> list[float]:
    """The values that the trial reported at the rungs that it has reached, lower is better; NaN is the worst."""
    if last_step is None:
        return []
    found: list[float] = []
    steps: Mapping[int, float] = trial.intermediate_values
    for fraction in rungs:
        step = min((step for step in steps if step >= fraction * last_step - 1e-9), default=None)
        if step is None:
            break
        found.append(signed(study, steps[step]))
    return found


def signed(study: optuna.Study, value: float) -> float:
    """The value so that lower is better."""
    if not math.isfinite(value):
        return math.inf
    return -value if study.direction == StudyDirection.MAXIMIZE else value


def parameter_of(one: BaseDistribution) -> Parameter:
    """An Optuna distribution as a parameter of ours; where it has many steps, they are seen to by `rounded`."""
    if isinstance(one, CategoricalDistribution):
        return Choices(tuple(one.choices))
    if values := few_values(one):
        return Choices(values)
    if isinstance(one, IntDistribution):
        return Range(one.low, one.high, log=one.log, integer=True)
    assert isinstance(one, FloatDistribution)
    return Range(one.low, one.high, log=one.log)


def few_values(one: BaseDistribution) -> tuple[float, ...]:
    """The values of a range with a wide step; none where there are many, or it has no step."""
    if not isinstance(one, IntDistribution | FloatDistribution) or one.log or one.step is None:
        return ()
    if isinstance(one, IntDistribution) and one.step == 1:
        return ()  # a range of whole numbers is one as it is
    count = round((one.high - one.low) / one.step) + 1
    return tuple(rounded(one, one.low + n * one.step) for n in range(count)) if count <= FEW_STEPS else ()


def on_its_step(one: BaseDistribution, value: Any) -> Any:
    """A value that was told, without the last digits that its way has cost; outside the range it stays what it is."""
    values = few_values(one)
    return rounded(one, value) if values and values[0] <= value <= values[-1] else value


def rounded(one: BaseDistribution, value: Any) -> Any:
    """The nearest value that the distribution contains."""
    if isinstance(one, CategoricalDistribution) or not isinstance(one, IntDistribution | FloatDistribution):
        return value
    if one.step is not None:
        value = one.low + round((value - one.low) / one.step) * one.step
    value = min(max(value, one.low), one.high)
    return int(value) if isinstance(one, IntDistribution) else float(value)
