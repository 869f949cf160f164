"""Our search: pause early, promote by rank, propose by a Gaussian process on ranks; pure, deterministic under a seed.

Trials run from rung to rung, fractions of their own full length. At each rung a trial pauses; the next slot that is
free goes to a paused trial that is among the best of its rung, the highest rung first, else to a new configuration.
Nothing is ever dropped: a paused trial may be taken up at any time. (Freeze-thaw: Swersky, Snoek & Adams 2014, arXiv
1406.3896; asynchronous promotion: Li et al. 2020, arXiv 1810.05934.)

Values are compared only at equal rungs. *Chain scores* bring all trials on one scale without a model of the curve: at
the first rung a score is the normal score of the value's rank among all; at each later rung the trials that got there
deal out their scores anew among themselves, in the order of their values there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from tuner.gaussian_process import GaussianProcess

Vector = npt.NDArray[np.float64]

RUNGS = (0.06, 0.09, 0.13, 0.20, 0.30, 0.45, 0.67, 1.0)
"""Fractions of a trial's own full length. The first is no smaller because ranks at one step say nothing (LCBench)."""
KEPT = 1 / 2.2
"""The share of a rung that goes on to the next one."""
FIRST = 8
"""Configurations that are tried at random before the model is asked."""
RANDOM_SHARE = 0.05
NOISE = (1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05)
"""Variance of a chain score at each rung, relative to the first."""
CAP = 160
"""Trials that the model is fitted to; a decision costs its cube."""
WIDE, NEAR = 1000, 60
"""Candidates anywhere, and near each of the three best."""
GUARD = 1.0
"""Standard deviations that a recommendation is held back by what is not known about it."""


class Space(Protocol):
    """Where configurations come from: points of the unit cube, and a key for each by which the caller knows it."""

    dimensions: int

    def random(self, rng: np.random.Generator, count: int) -> tuple[Vector, list[Any]]:
        """Up to `count` points (count, dimensions) that have not been proposed yet, and their keys."""

    def near(self, rng: np.random.Generator, point: Vector, count: int) -> tuple[Vector, list[Any]]:
        """The same near a point."""

    def take(self, key: Any) -> None:
        """The configuration is being tried from now on."""


@dataclass
class Trial:
    """A configuration under trial: its point, its values at the rungs that it has reached, and whether it runs now."""

    number: int
    key: Any
    point: Vector
    values: list[float] = field(default_factory=list)
    is_running: bool = False
    is_over: bool = False

    @property
    def rung(self) -> int:
        """The index of the last rung reached, -1 before the first."""
        return len(self.values) - 1


@dataclass(frozen=True, slots=True)
class Step:
    """What a free slot is to do: start or go on with this trial until `fraction` of its full length."""

    trial: int
    key: Any
    kind: Literal["start", "resume"]
    fraction: float


class FreezeThaw:
    """The search's state. Lower values are better; any number of trials may run at once."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._rng = np.random.default_rng(seed)
        self.trials: list[Trial] = []
        self._model: GaussianProcess | None = None
        self._hyper: Vector | None = None
        self._fitted_at = (-1, -1)

    def propose(self) -> Step | None:
        """Work for a free slot; None when every configuration is running or over."""
        trial = self._promotable()
        if trial is None:
            trial = self._start()
        if trial is None:
            trial = self._best_paused()
        if trial is None:
            return None
        trial.is_running = True
        kind: Literal["start", "resume"] = "resume" if trial.values else "start"
        return Step(trial.number, trial.key, kind, RUNGS[trial.rung + 1])

    def observe(self, number: int, value: float) -> Literal["pause", "stop"]:
        """A running trial has reached its next rung with this value; one that is not finite counts as the worst."""
        trial = self.trials[number]
        trial.values.append(value if math.isfinite(value) else math.inf)
        trial.is_running = False
        trial.is_over = len(trial.values) == len(RUNGS) or not math.isfinite(value)
        return "stop" if trial.is_over else "pause"

    def recommend(self) -> int | None:
        """The trial to recommend now: the least upper bound of the score, one standard deviation above its mean."""
        seen = [trial for trial in self.trials if trial.values and math.isfinite(trial.values[-1])]
        if not seen:
            return None
        scores = self._scores()
        if len(seen) < 4:
            return min(seen, key=lambda trial: (scores[trial.number], -trial.rung)).number
        model = self._fitted(scores)
        deepest = max(trial.rung for trial in seen)
        deep = [trial for trial in seen if trial.rung >= deepest - 1] if deepest > 1 else seen
        mean, deviation = model.predict(np.array([trial.point for trial in deep]))
        return deep[int(np.argmin(mean + GUARD * deviation))].number

    def to_json(self) -> dict[str, Any]:
        """Everything that the next decisions depend on besides the space."""
        return {
            "rng": self._rng.bit_generator.state,
            "trials": [
                {
                    "key": trial.key,
                    "point": trial.point.tolist(),
                    "values": [value if math.isfinite(value) else None for value in trial.values],
                    "is_running": trial.is_running,
                    "is_over": trial.is_over,
                }
                for trial in self.trials
            ],
            "hyper": None if self._hyper is None else self._hyper.tolist(),
        }

    @classmethod
    def from_json(cls, space: Space, state: Mapping[str, Any]) -> FreezeThaw:
        """The search as it was; its configurations are taken from `space` again."""
        search = cls(space, 0)
        search._rng.bit_generator.state = state["rng"]
        search._hyper = None if state["hyper"] is None else np.array(state["hyper"])
        for number, told in enumerate(state["trials"]):
            values = [math.inf if value is None else float(value) for value in told["values"]]
            point = np.array(told["point"], dtype=np.float64)
            search.trials.append(Trial(number, told["key"], point, values, told["is_running"], told["is_over"]))
            space.take(told["key"])
        return search

    def _promotable(self) -> Trial | None:
        for rung in range(len(RUNGS) - 2, -1, -1):
            there = sorted((t for t in self.trials if t.rung >= rung), key=lambda t: (t.values[rung], t.number))
            best = there[: int(len(there) * KEPT)]
            for trial in best:
                if trial.rung == rung and not trial.is_running and not trial.is_over:
                    return trial
        return None

    def _best_paused(self) -> Trial | None:
        paused = [t for t in self.trials if t.values and not t.is_running and not t.is_over]
        scores = self._scores()
        return min(paused, key=lambda t: (scores[t.number], t.number), default=None)

    def _start(self) -> Trial | None:
        scores = self._scores()
        points, keys = self._candidates(scores)
        if not keys:
            return None
        chosen = 0
        observed = sum(1 for trial in self.trials if trial.values)
        if observed >= FIRST and self._rng.random() >= RANDOM_SHARE:
            chosen = self._most_promising(points, scores)
        self._space.take(keys[chosen])
        trial = Trial(len(self.trials), keys[chosen], points[chosen])
        self.trials.append(trial)
        return trial

    def _candidates(self, scores: Mapping[int, float]) -> tuple[Vector, list[Any]]:
        points, keys = self._space.random(self._rng, WIDE)
        best = sorted(scores, key=lambda number: scores[number])[:3]
        for number in best if len(scores) >= FIRST else []:
            more, named = self._space.near(self._rng, self.trials[number].point, NEAR)
            if named:
                points, keys = np.concatenate((points, more)), keys + named
        return points, keys

    def _most_promising(self, points: Vector, scores: Mapping[int, float]) -> int:
        """The index of the largest expected improvement over the best posterior mean."""
        model = self._fitted(scores)
        mean, deviation = model.predict(points)
        best = float(model.predict(model.points)[0].min())
        gain = best - mean
        ratio = gain / deviation
        improvement = gain * ndtr(ratio) + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
        return int(np.argmax(improvement))

    def _fitted(self, scores: Mapping[int, float]) -> GaussianProcess:
        stamp = (sum(len(trial.values) for trial in self.trials), len(self.trials))
        if self._model is not None and stamp == self._fitted_at:
            return self._model
        chosen = sorted(scores, key=lambda number: (-self.trials[number].rung, scores[number]))
        if len(chosen) > CAP:
            rest = [chosen[i] for i in self._rng.choice(np.arange(CAP // 2, len(chosen)), CAP // 2, replace=False)]
            chosen = chosen[: CAP // 2] + rest
        points = np.array([self.trials[number].point for number in chosen])
        values = np.array([scores[number] for number in chosen])
        noise = np.array([NOISE[self.trials[number].rung] for number in chosen])
        pending = [t for t in self.trials if t.is_running and not t.values]
        model = GaussianProcess(points, values, noise, self._rng, self._hyper)
        self._hyper = model.hyper
        if pending:
            model = model.believing(np.array([t.point for t in pending]), NOISE[0])
        self._model, self._fitted_at = model, stamp
        return model

    def _scores(self) -> dict[int, float]:
        """The chain score of every trial with a value, by number; lower is better."""
        first = [trial for trial in self.trials if trial.values]
        scores = {}
        for place, trial in enumerate(sorted(first, key=lambda t: (t.values[0], t.number))):
            scores[trial.number] = NormalDist().inv_cdf((place + 0.5) / len(first))
        for rung in range(1, len(RUNGS)):
            there = [trial for trial in first if trial.rung >= rung]
            if len(there) < 2:
                continue
            dealt = sorted(scores[trial.number] for trial in there)
            for score, trial in zip(dealt, sorted(there, key=lambda t: (t.values[rung], t.number)), strict=True):
                scores[trial.number] = score
        return scores
