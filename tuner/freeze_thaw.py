"""Our search: pause early, promote by rank, propose by a Gaussian process on ranks; pure, deterministic under a seed.

Trials run from rung to rung, fractions of their own full length. At each rung a trial pauses; the next slot that is
free goes to a paused trial that is among the best of its rung, the highest rung first, else to a new configuration.
Nothing is ever dropped: a paused trial may be taken up at any time. (Freeze-thaw: Swersky, Snoek & Adams 2014, arXiv
1406.3896; asynchronous promotion: Li et al. 2020, arXiv 1810.05934.)

Where earlier jobs are known, what they recommend comes first (`tuner.opening`); while they are believed, half of the
decisions are a draw from the posterior (Thompson sampling: Russo et al. 2018, arXiv 1707.02038), so that few good
configurations go to their end instead of many new ones.

Values are compared only at equal rungs; `tuner.chain_scores` brings all trials on one scale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from tuner.chain_scores import Standings
from tuner.gaussian_process import GaussianProcess, nothing
from tuner.history import SIZE, History
from tuner.opening import Opening

Vector = npt.NDArray[np.float64]
Verdict = Literal["continue", "pause", "stop"]

RUNGS = (0.03, 0.06, 0.09, 0.13, 0.20, 0.30, 0.45, 0.67, 1.0)
"""Fractions of a trial's own full length. The first is no smaller because ranks at one step say nothing (LCBench)."""
GLIMPSE = 0.06
"""Before this share only the last quarter waits (nothing is stopped where nothing can pause): many slots would know
nothing for a long while otherwise, and ranks that early are not much more than a guess."""
KEPT = 1 / 2.2
"""The share of a rung that goes on to the next one."""
PATIENCE, EARLY_KEPT = 0.25, 0.75
"""Where nothing can pause, only the last quarter is stopped before a quarter of the length, as early ranks mislead."""
FIRST = 8
"""Configurations that are tried at random before the model is asked."""
RANDOM_SHARE = 0.05
NOISE = (1.2, 1.0, 0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05)
"""Variance of a chain score at each of RUNGS, relative to a rank's own; between them by the fraction's logarithm."""
CAP = 160
"""Trials that the model is fitted to; a decision costs its cube."""
WIDE, NEAR = 1000, 60
"""Candidates anywhere (half as many where earlier jobs know better), and near each of the three best."""
FEW = 20
"""Random points of which one is taken that does not lie next to what has failed."""
SIFTED = 400
"""Candidates with the best means, of which the expected improvement is computed."""
MISFIT = 0.7
"""Variance of a score about what earlier jobs say of it, noise aside."""
MANY_ENDED = 5
"""Trials at their end by which a score is turned into a value."""
BELIEVED = 0.5
"""The share of decisions that are drawn from the model while earlier jobs are believed."""
DRAWN = 60
"""Configurations not tried yet, and trials that are paused, among which such a draw is made, by their means."""
GUARD = 1.0
"""Standard deviations that a recommendation is held back by what is not known about it."""


class Space(Protocol):
    """Where configurations come from: points of the unit cube, and a key for each by which the caller knows it."""

    dimensions: int

    def random(self, rng: np.random.Generator, count: int) -> Vector:
        """Up to `count` points (count, dimensions) that have not been taken yet; none when the space is used up."""

    def near(self, rng: np.random.Generator, point: Vector, count: int) -> Vector:
        """The same near a point."""

    def take(self, point: Vector) -> Any:
        """The key of a point, which is being tried from now on."""

    def place(self, key: Any) -> Vector:
        """The point of a key that somebody else has chosen, and which is being tried from now on."""


@dataclass
class Trial:
    """A configuration under trial: its point, its values at the rungs that it has reached, and whether it runs now."""

    number: int
    key: Any
    point: Vector
    values: list[float] = field(default_factory=list)
    is_running: bool = False
    is_over: bool = False
    runs_to_end: bool = False

    @property
    def rung(self) -> int:
        """The index of the last rung reached, -1 before the first."""
        return len(self.values) - 1

    @property
    def is_free(self) -> bool:
        """Whether a slot may take it up."""
        return not self.is_running and not self.is_over


@dataclass(frozen=True, slots=True)
class Step:
    """What a free slot is to do: start or go on with this trial until the rung, at `fraction` of its full length."""

    trial: int
    key: Any
    kind: Literal["start", "resume"]
    rung: int
    fraction: float


def report_rungs(reports: int) -> tuple[int, ...]:
    """The rungs of curves with this many equally spaced points: indices from 1 to `reports`, each once."""
    return tuple(sorted({max(1, math.ceil(fraction * reports - 1e-9)) for fraction in RUNGS}))


class FreezeThaw:
    """The search's state. Lower values are better; any number of trials may run at once.

    `rungs` are the fractions of its length at which a trial is looked at, the last one 1. A caller whose trials
    `can_pause` not is told to stop what would be paused; that may change from one observation to the next.
    """

    def __init__(
        self,
        space: Space,
        seed: int,
        rungs: Sequence[float] = RUNGS,
        *,
        can_pause: bool = True,
        history: History | None = None,
    ) -> None:
        self._space = space
        self._history = history if history is not None and history.is_trusted else None
        self._opening = None if self._history is None else Opening(self._history, space)
        self.doubts_history = False
        """Whether earlier jobs are left aside because they are wrong about this one."""
        self._rng = np.random.default_rng(seed)
        self._rungs = tuple(rungs)
        self.can_pause = can_pause
        self._noise = np.interp(np.log(self._rungs), np.log(RUNGS), NOISE)
        self.trials: list[Trial] = []
        self._standings = Standings(len(self._rungs))
        self._model: GaussianProcess | None = None
        self._hyper: Vector | None = None
        self._belief = 0.0 if self._history is None else 1.0
        self._draw: tuple[tuple[int, int, int], Trial | Vector | None] = ((-1, -1, -1), None)
        self._fitted_at = (-1, -1, -1)

    def add(self, key: Any, *, runs_to_end: bool = False, values: Sequence[float] = (), is_over: bool = False) -> int:
        """The number of a trial that the caller has chosen: the baseline, or one of an earlier run with its `values`.

        It is the next to be started, after those added before it, unless it has values; it is never paused if it
        `runs_to_end`.
        """
        trial = Trial(len(self.trials), key, self._space.place(key), [_told(v) for v in values])
        trial.runs_to_end, trial.is_over = runs_to_end, is_over
        self._enter(trial, trial.point)
        for rung, value in enumerate(trial.values):
            self._standings.add(trial.number, rung, value)
        self._check()
        return trial.number

    def propose(self, may_start: bool = True) -> Step | None:
        """Work for a free slot; None when every configuration is running or over.

        Unless it `may_start` configurations of its own, the promotions that are due go on, to the end of one trial at
        least, and then there is no more work.
        """
        trial = next((t for t in self.trials if t.is_free and (t.runs_to_end or not t.values)), None)
        if trial is None:
            advised = self._advised(may_start)
            trial = advised if advised is None or isinstance(advised, Trial) else self._begun(advised)
        if trial is None:
            trial = self._promotable(may_start)
        if trial is None and may_start:
            trial = self._start() or self._best_paused()
        return None if trial is None else self._step(trial)

    def observe(self, number: int, value: float, may_start: bool = True) -> Verdict:
        """A running trial has reached its next rung with this value; one that is not finite counts as the worst.

        `continue`: it is the one that `propose` would name next, so it goes on to the rung after that.
        """
        trial = self.trials[number]
        trial.values.append(_told(value))
        self._standings.add(number, trial.rung, trial.values[-1])
        trial.is_running = False
        trial.is_over = len(trial.values) == len(self._rungs) or not math.isfinite(value)
        self._check()
        if trial.is_over:
            return "stop"
        if trial.runs_to_end:
            goes_on = True
        elif not self.can_pause:
            goes_on = self._survives(trial)
        else:
            advised = self._advised(may_start)
            goes_on = trial is (self._promotable(may_start) if advised is None else advised)
        if goes_on:
            trial.is_running = True
            return "continue"
        trial.is_over = not self.can_pause
        return "pause" if self.can_pause else "stop"

    def interrupt(self, number: int) -> None:
        """A running trial was cut off on its way; it is as it was at its last rung, and may be taken up from there."""
        self.trials[number].is_running = False

    def remove(self, number: int) -> None:
        """A trial has failed in a way that says nothing about its configuration, or cannot be taken up: forget it."""
        trial = self.trials[number]
        for rung, value in enumerate(trial.values):
            self._standings.remove(number, rung, value)
        trial.values.clear()
        trial.is_running, trial.is_over = False, True

    def close(self, number: int) -> None:
        """A trial cannot go on, but its values count: its checkpoint is lost, or it was stopped from outside."""
        trial = self.trials[number]
        trial.is_running, trial.is_over = False, True

    def recommend(self) -> int | None:
        """The trial to recommend now."""
        return next(iter(self.ranking(1)), None)

    def ranking(self, count: int) -> list[int]:
        """Up to `count` trials to recommend, the best first: by the upper bound of the score, GUARD standard deviations
        above its mean; those first that are within one rung of the one that got furthest by its merit."""
        seen = [trial for trial in self.trials if trial.values and math.isfinite(trial.values[-1])]
        if not seen:
            return []
        scores = self._standings.scores()
        if len(seen) < 4:
            return [t.number for t in sorted(seen, key=lambda t: (scores[t.number], -t.rung))][:count]
        deepest = max((trial.rung for trial in seen if not trial.runs_to_end), default=0)
        least = deepest - 1 if deepest > 1 else 0
        mean, deviation = self._fitted(scores).predict(np.array([trial.point for trial in seen]))
        bound = mean + GUARD * deviation
        order = sorted(range(len(seen)), key=lambda n: (seen[n].rung < least, bound[n]))
        return [seen[n].number for n in order[:count]]

    def expected_gain(self) -> float | None:
        """By how much the best configuration not tried yet is expected to beat the best one, in units of the value.

        None until MANY_ENDED trials have come to their end and the model has been asked. Leaves the search as it is.
        """
        scores = self._standings.scores()
        ended = [t for t in self.trials if t.rung == len(self._rungs) - 1 and math.isfinite(t.values[-1])]
        best = sorted(ended, key=lambda trial: scores[trial.number])[: max(MANY_ENDED, len(ended) // 2)]
        if len(best) < MANY_ENDED or len(scores) < 2 * FIRST:
            return None
        kept = self._rng, self._model, self._hyper, self._fitted_at
        self._rng = np.random.default_rng(len(scores))
        points = self._candidates(scores)
        gain = float(self._improvement(points, scores)[1].max()) if len(points) else 0.0
        self._rng, self._model, self._hyper, self._fitted_at = kept
        each = np.array([scores[trial.number] for trial in best])
        values = np.array([trial.values[-1] for trial in best])
        return gain * float(np.ptp(values) / max(np.ptp(each), 1e-9))

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
                    "runs_to_end": trial.runs_to_end,
                }
                for trial in self.trials
            ],
            "hyper": None if self._hyper is None else self._hyper.tolist(),
        }

    @classmethod
    def from_json(
        cls, space: Space, state: Mapping[str, Any], rungs: Sequence[float] = RUNGS, *, can_pause: bool = True
    ) -> FreezeThaw:
        """The search as it was; its configurations are taken from `space` again."""
        search = cls(space, 0, rungs, can_pause=can_pause)
        search._rng.bit_generator.state = state["rng"]
        search._hyper = None if state["hyper"] is None else np.array(state["hyper"])
        for told in state["trials"]:
            values = [math.inf if value is None else value for value in told["values"]]
            number = search.add(told["key"], values=values, is_over=told["is_over"], runs_to_end=told["runs_to_end"])
            search.trials[number].point = np.array(told["point"], dtype=np.float64)
            search.trials[number].is_running = told["is_running"]
        return search

    def _step(self, trial: Trial) -> Step:
        trial.is_running = True
        rung = trial.rung + 1
        return Step(trial.number, trial.key, "resume" if trial.values else "start", rung, self._rungs[rung])

    def _promotable(self, may_start: bool) -> Trial | None:
        """The next trial to go on by the rule: from the last rung down, the best of those that are among the best.

        Once no more are started, shares of a rung are rounded up, so that one comes to its end.
        """
        rounded = math.floor if may_start else math.ceil
        for rung in range(len(self._rungs) - 2, -1, -1):
            for number in self._standings.best(rung, rounded(self._standings.count(rung) * self._share(rung))):
                if self.trials[number].rung == rung and self.trials[number].is_free:
                    return self.trials[number]
        return None

    def _survives(self, trial: Trial) -> bool:
        """Whether a trial that cannot be paused goes on."""
        kept = math.ceil(self._standings.count(trial.rung) * self._share(trial.rung))
        return self._standings.place(trial.number, trial.rung, trial.values[-1]) < kept

    def _share(self, rung: int) -> float:
        """Of the trials at a rung, those that go on."""
        if self._rungs[rung] < GLIMPSE:
            return EARLY_KEPT if self.can_pause else 1.0
        return KEPT if self.can_pause or self._rungs[rung] >= PATIENCE else EARLY_KEPT

    def _best_paused(self) -> Trial | None:
        paused = [trial for trial in self.trials if trial.values and trial.is_free]
        scores = self._standings.scores()
        return min(paused, key=lambda t: (scores[t.number], t.number), default=None)

    def _advised(self, may_start: bool) -> Trial | Vector | None:
        """What earlier jobs advise next: a paused trial, or the point of a new one; None: ask the rule."""
        if self._opening is None or not (may_start and self.can_pause):
            return None
        point = self._opening.next_point(with_poor=True)
        if point is not None:
            return point
        due = self._opening.due(self.trials, self._rungs)
        return due if due is not None else self._drawn()

    def _check(self) -> None:
        """Forget the earlier jobs where they are wrong about this one."""
        if self._opening is not None and self._opening.is_contradicted(self.trials):
            self._history, self._opening, self._belief, self._model = None, None, 0.0, None
            self.doubts_history = True

    def _drawn(self) -> Trial | Vector | None:
        """What is best in one draw from the posterior: a paused trial, or the point of a new one; None: ask the rule.

        The same until something is observed or started, so that `observe` and `propose` agree.
        """
        if self._standings.count(0) < SIZE:
            return None
        now = self._stamp()
        before, drawn = self._draw
        if before != now or (isinstance(drawn, Trial) and not drawn.is_free):
            drawn = self._best_of_a_draw() if self._rng.random() < BELIEVED * self._belief else None
        self._draw = now, drawn
        return drawn

    def _best_of_a_draw(self) -> Trial | Vector | None:
        scores = self._standings.scores()
        points = self._candidates(scores)
        if not len(points):
            return None
        model = self._fitted(scores)
        points = points[model.promising(points, DRAWN)[0]]
        paused = sorted((t for t in self.trials if t.values and t.is_free), key=lambda t: scores[t.number])[:DRAWN]
        together = np.concatenate((np.array([t.point for t in paused]).reshape(-1, points.shape[1]), points))
        best = int(np.argmin(model.drawn(together, self._rng)))
        return paused[best] if best < len(paused) else np.asarray(together[best])

    def _start(self) -> Trial | None:
        scores = self._standings.scores()
        points = self._candidates(scores)
        if not len(points):
            return None
        opening = None if self._opening is None else self._opening.next_point(with_poor=False)
        if opening is not None:
            chosen = opening
        elif len(scores) >= FIRST and self._rng.random() >= RANDOM_SHARE:
            chosen = points[self._most_promising(points, scores)]
        else:
            chosen = self._at_random(points)
        return self._begun(chosen)

    def _at_random(self, points: Vector) -> Vector:
        """The first of some random points whose nearest neighbour has not failed; the first where all have."""
        told = [trial for trial in self.trials if trial.values]
        if all(math.isfinite(trial.values[-1]) for trial in told):
            return np.asarray(points[0])
        tried = np.array([trial.point for trial in told])
        has_failed = np.array([not math.isfinite(trial.values[-1]) for trial in told])
        some = points[:FEW]
        nearest = np.square(some[:, None] - tried[None]).sum(axis=-1).argmin(axis=1)
        return np.asarray(some[int(np.argmin(has_failed[nearest]))])

    def _begun(self, point: Vector) -> Trial:
        key = self._space.take(point)
        trial = Trial(len(self.trials), key, self._space.place(key))
        self._enter(trial, point)
        return trial

    def _enter(self, trial: Trial, point: Vector) -> None:
        self.trials.append(trial)
        if self._opening is not None:
            self._opening.began(trial.number, point)

    def _candidates(self, scores: Mapping[int, float]) -> Vector:
        points = [self._space.random(self._rng, WIDE if self._history is None else WIDE // 2)]
        if len(scores) >= FIRST:
            best = sorted(scores, key=lambda number: scores[number])[:3]
            around = [self.trials[number].point for number in best]
            if self._history is not None:
                around += list(self._rng.permutation(self._history.leaders)[:3])
            points += [self._space.near(self._rng, point, NEAR) for point in around]
        return np.concatenate(points)

    def _most_promising(self, points: Vector, scores: Mapping[int, float]) -> int:
        """The index of the largest expected improvement over the best posterior mean."""
        chosen, improvement = self._improvement(points, scores)
        return int(chosen[np.argmax(improvement)])

    def _improvement(self, points: Vector, scores: Mapping[int, float]) -> tuple[npt.NDArray[np.intp], Vector]:
        """Indices of promising points and the expected improvement of each, in units of the score."""
        model = self._fitted(scores)
        chosen, mean, deviation = model.promising(points, SIFTED)
        gain = float(model.fitted().min()) - mean
        ratio = gain / deviation
        return chosen, gain * ndtr(ratio) + deviation * np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)

    def _stamp(self) -> tuple[int, int, int]:
        """What changes with everything that is started or observed."""
        pending = sum(trial.is_running and not trial.values for trial in self.trials)
        return sum(len(trial.values) for trial in self.trials), len(self.trials), pending

    def _fitted(self, scores: Mapping[int, float]) -> GaussianProcess:
        pending = [trial for trial in self.trials if trial.is_running and not trial.values]
        stamp = self._stamp()
        if self._model is not None and stamp == self._fitted_at:
            return self._model
        chosen = sorted(scores, key=lambda number: (-self.trials[number].rung, scores[number]))
        if len(chosen) > CAP:
            rest = [chosen[i] for i in self._rng.choice(np.arange(CAP // 2, len(chosen)), CAP // 2, replace=False)]
            chosen = chosen[: CAP // 2] + rest
        compared = self._standings.compared_rung()
        points = np.array([self.trials[number].point for number in chosen])
        values = np.array([scores[number] for number in chosen])
        noise = np.array([self._noise[min(self.trials[number].rung, compared)] for number in chosen])
        prior = nothing
        if self._history is not None:
            weights = self._history.weights(points, values, MISFIT + (1 - MISFIT) * noise)
            self._belief = self._history.belief(weights)
            prior = partial(self._history.mean, weights=weights)
        model = GaussianProcess(points, values, noise, self._rng, self._hyper, prior=prior)
        self._hyper = model.hyper
        if pending:
            model = model.believing(np.array([trial.point for trial in pending]), self._noise[0])
        self._model, self._fitted_at = model, stamp
        return model


def _told(value: float) -> float:
    return value if math.isfinite(value) else math.inf
