"""The tuners that `bench.replay` compares: ours, random search, Optuna's samplers and pruners, asynchronous halving."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tuner.freeze_thaw import RUNGS, FreezeThaw
from tuner.history import History
from tuner.unit_space import Listed

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Task:
    """A table: `unit` (configurations, parameters) in the unit cube, `curves` (configurations, steps), own lengths."""

    name: str
    family: str
    best: float
    median: float
    unit: Vector
    curves: Vector
    lengths: npt.NDArray[np.int64]
    history: History | None = None

    def regret(self, config: int | None) -> float:
        """Of recommending this configuration; that of the median without a recommendation."""
        if config is None:
            return 1.0
        value = float(self.curves[config, self.lengths[config] - 1])
        return (value - self.best) / (self.median - self.best)


@dataclass(frozen=True, slots=True)
class Work:
    """Train `config` for `steps` more steps, up to step `end`; `trial` is the method's own name for it."""

    trial: Any
    config: int
    steps: int
    end: int


class Method(Protocol):
    """A tuner: work for a free slot, the news that it is done, a recommendation at any moment."""

    def propose(self) -> Work | None: ...

    def observe(self, work: Work) -> None: ...

    def recommend(self) -> int | None: ...


class Ours:
    """`tuner.freeze_thaw` over the table's configurations; it stops instead of pausing unless it `can_pause`."""

    def __init__(self, task: Task, seed: int, *, can_pause: bool = True) -> None:
        self._task = task
        self._search = FreezeThaw(Listed(task.unit), seed, can_pause=can_pause, history=task.history)
        self._reached: dict[int, int] = {}
        self._goes_on: list[int] = []

    def propose(self) -> Work | None:
        if self._goes_on:
            return self._work(self._goes_on.pop())
        step = self._search.propose()
        return None if step is None else self._work(step.trial)

    def observe(self, work: Work) -> None:
        value = float(self._task.curves[work.config, work.end - 1])
        if self._search.observe(work.trial, value) == "continue":
            self._goes_on.append(work.trial)

    def recommend(self) -> int | None:
        trial = self._search.recommend()
        return None if trial is None else int(self._search.trials[trial].key)

    def _work(self, number: int) -> Work:
        trial = self._search.trials[number]
        length, start = int(self._task.lengths[trial.key]), self._reached.get(number, 0)
        end = min(length, max(start + 1, math.ceil(RUNGS[trial.rung + 1] * length)))
        self._reached[number] = end
        return Work(number, trial.key, end - start, end)


class Seen:
    """What the stock tuners share: recommend the configuration with the best value seen at any step."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task = task
        self._rng = np.random.default_rng(seed)
        self._best: tuple[float, int] | None = None
        self._order = iter(self._rng.permutation(len(task.unit)).tolist())

    def recommend(self) -> int | None:
        return None if self._best is None else self._best[1]

    def _see(self, work: Work) -> float:
        values = self._task.curves[work.config, work.end - work.steps : work.end]
        least = float(np.min(np.where(np.isfinite(values), values, np.inf)))
        if self._best is None or least < self._best[0]:
            self._best = (least, work.config)
        return float(self._task.curves[work.config, work.end - 1])


class Random(Seen):
    """Full runs in random order."""

    def propose(self) -> Work | None:
        config = next(self._order, None)
        if config is None:
            return None
        return Work(config, config, int(self._task.lengths[config]), int(self._task.lengths[config]))

    def observe(self, work: Work) -> None:
        self._see(work)


class Asha(Seen):
    """Random search with asynchronous successive halving by Ray Tune's defaults: grace 1, factor 4, stop only."""

    FACTOR = 4

    def __init__(self, task: Task, seed: int) -> None:
        super().__init__(task, seed)
        self._rungs: dict[int, list[float]] = {}
        self._goes_on: list[tuple[int, int]] = []

    def propose(self) -> Work | None:
        if self._goes_on:
            config, start = self._goes_on.pop()
        else:
            config, start = next(self._order, -1), 0
        if config < 0:
            return None
        end = min(int(self._task.lengths[config]), max(1, start * self.FACTOR))
        return Work(config, config, end - start, end)

    def observe(self, work: Work) -> None:
        value = self._see(work)
        there = self._rungs.setdefault(work.end, [])
        there.append(value if math.isfinite(value) else math.inf)
        keeps = value <= np.percentile(there, 100 / self.FACTOR)
        if keeps and work.end < self._task.lengths[work.config]:
            self._goes_on.append((work.config, work.end))


class OptunaMethod(Seen):
    """A sampler and a pruner of Optuna; what the sampler draws is moved to the nearest configuration not tried yet."""

    def __init__(self, task: Task, seed: int, sampler: Any, pruner: Any) -> None:
        super().__init__(task, seed)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        self._optuna = optuna
        self._study = optuna.create_study(sampler=sampler, pruner=pruner)
        self._space: dict[str, optuna.distributions.BaseDistribution] = {}
        self._space |= {f"p{i}": optuna.distributions.FloatDistribution(0.0, 1.0) for i in range(task.unit.shape[1])}
        self._is_free = np.ones(len(task.unit), dtype=bool)
        self._running: list[tuple[Any, int, int]] = []

    def propose(self) -> Work | None:
        if self._running:
            trial, config, start = self._running.pop()
        elif self._is_free.any():
            trial, config = self._ask()
            start = 0
        else:
            return None
        return Work(trial, config, 1, start + 1)

    def observe(self, work: Work) -> None:
        value = self._see(work)
        is_last = work.end == self._task.lengths[work.config]
        if not math.isfinite(value):
            self._study.tell(work.trial, state=self._optuna.trial.TrialState.FAIL)
            return
        work.trial.report(value, work.end)
        if is_last:
            self._study.tell(work.trial, value)
        elif work.trial.should_prune():
            self._study.tell(work.trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._running.append((work.trial, work.config, work.end))

    def _ask(self) -> tuple[Any, int]:
        drawn = self._study.ask(self._space)
        point = np.array([drawn.params[name] for name in self._space])
        free = np.flatnonzero(self._is_free)
        config = int(free[np.argmin(((self._task.unit[free] - point) ** 2).sum(1))])
        self._is_free[config] = False
        self._study.tell(drawn, state=self._optuna.trial.TrialState.FAIL)
        named = dict(zip(self._space, self._task.unit[config].tolist(), strict=True))
        self._study.enqueue_trial(named)
        return self._study.ask(self._space), config


def _optuna(sampler: str, pruner: str) -> Callable[[Task, int], Method]:
    def make(task: Task, seed: int) -> Method:
        import optuna

        samplers = {"tpe": optuna.samplers.TPESampler, "gp": optuna.samplers.GPSampler}
        pruners: dict[str, Callable[[], Any]] = {
            "none": optuna.pruners.NopPruner,
            "median": optuna.pruners.MedianPruner,
            "hyperband": lambda: optuna.pruners.HyperbandPruner(max_resource=int(task.lengths.max())),
        }
        warnings.simplefilter("ignore")
        return OptunaMethod(task, seed, samplers[sampler](seed=seed), pruners[pruner]())

    return make


METHODS: dict[str, Callable[[Task, int], Method]] = {
    "x5": Ours,
    "x5-stop-only": partial(Ours, can_pause=False),
    "random": Random,
    "tpe": _optuna("tpe", "none"),
    "tpe+hyperband": _optuna("tpe", "hyperband"),
    "tpe+median": _optuna("tpe", "median"),
    "gp": _optuna("gp", "none"),
    "asha": Asha,
}
