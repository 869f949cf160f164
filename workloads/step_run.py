"""A few steps of the job's own training, each looked at, without any evaluation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from workloads.contract import Diverged, Fidelity, ProbeConfig, Stop
from workloads.horizon import UNREACHED_STEPS, Horizon
from workloads.settings import Settings
from workloads.team import Team
from workloads.trainable import Trainable, collate, tokens_per_sample
from workloads.training import train

SLACK = 2.0
"""How many times as long as full runs of as many steps the runs may take: they begin more often."""

LEAST_S = 5.0
"""Less time than this is not worth saving: on a busy machine it would be up by chance."""


class TimeIsUpError(Exception):
    """The runs have taken as long as they may; says how long that is."""


class StepRuns:
    """Runs of a few steps that may take `seconds` together (None: no limit), the data included.

    Nor may they take longer than `runs` full runs: the first run shows how long these are, and where first steps take
    long (a compiler) short runs are mostly first steps.
    """

    def __init__(
        self, workload: Trainable, config: ProbeConfig, asked: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        self._clock, self._team, self._runs = clock, Team.current(), float(asked["runs"])
        began = clock()
        self._ends_at = math.inf if asked["seconds"] is None else began + float(asked["seconds"])
        self._may_take_s = self._ends_at - began
        self._workload = TrainedOnly(workload)
        batch_size, tokens = Settings.of(config).batch_size, self._workload.tokens_per_sample
        self.full_steps = Horizon.of(config.fidelity, batch_size, tokens).steps
        self._is_first = True

    def train(self, steps: int, config: ProbeConfig) -> StepRun:
        """One run as `config` says, but for its length. Raises TimeIsUpError."""
        began = self._clock()
        run = StepRun(steps, self._clock, lambda: self._team.from_lead(lambda: self._clock() > self._ends_at))
        fidelity = Fidelity("steps", steps, steps)
        try:
            train(self._workload, replace(config, fidelity=fidelity, split="validation"), run)
        except Diverged as error:
            run.diverged = str(error)
        except _LateError:
            raise TimeIsUpError(f"the {self._may_take_s:.3g} s that it may take") from None
        if self._is_first:
            self._learn(began, run.times)
        return run

    def _learn(self, began: float, times: list[float]) -> None:
        self._is_first = False
        each = [after - before for before, after in pairwise(times)]
        if not each or self.full_steps == UNREACHED_STEPS:
            return
        full_s = times[0] - began + self.full_steps * fmean(each)
        may_take_s = max(LEAST_S, SLACK * self._runs * full_s)
        if began + may_take_s < self._ends_at:
            self._ends_at, self._may_take_s = began + may_take_s, may_take_s


class _LateError(Exception):
    """Lets a run end."""


class StepRun:
    """A probe of so many steps: the training loss of each, when it was over, and why the run `diverged`, if it did."""

    Stop = Stop

    def __init__(self, steps: int, clock: Callable[[], float], is_late: Callable[[], bool]) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self.times: list[float] = []
        self.diverged: str | None = None
        self._clock, self._is_late = clock, is_late

    def due(self, step: int) -> bool:  # noqa: ARG002 - every step is
        return True

    def report(self, *, step: int, **metrics: float) -> None:  # noqa: ARG002 - they come in order
        self.times.append(self._clock())
        self.losses.append(metrics["train_loss"])
        if self._is_late():
            raise _LateError


class TrainedOnly:
    """`workload` without its evaluations; its training data are read once."""

    def __init__(self, workload: Trainable) -> None:
        self.model, self.loss, self.collate = workload.model, workload.loss, collate(workload)
        self.tokens_per_sample = tokens_per_sample(workload)
        self._data = workload.train_data()

    def train_data(self) -> Any:
        return self._data

    def eval_data(self) -> Any:
        return ()

    def evaluate(self, model: object, data: object, /) -> Mapping[str, float]:  # noqa: ARG002
        return {}
