"""What earlier jobs say of a configuration before it is tried, and how much of that to believe.

Each earlier job is a *task*: points of the current job's cube, a regret and a score for each (lower is better). A
Gaussian process per task, all with the same length scales, carries a task's scores to points that it has not tried; a
point that it has tried keeps its own. Then

* a *portfolio* opens the search (`tuner.opening`): few configurations that complement one another, chosen greedily so
  that for each task one is good (Wistuba, Schilling & Schmidt-Thieme 2015, "Sequential model-free hyperparameter
  tuning"; Feurer et al. 2022, arXiv 2007.04074, section 3.1);
* a *prior* stands under the search's own model: the tasks' scores, weighted by Bayesian linear regression on what the
  search has observed. The weights start at what the tasks' agreement with one another promises and follow the evidence:
  trust is earned, and lost, by each task and by all together (`belief`).

Tasks that do not agree with each other are not believed at all; those that do and are wrong are found out by the
opening, or else by their weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve

from tuner.chain_scores import FAR
from tuner.gaussian_process import GaussianProcess
from tuner.unit_space import fingerprint, rounded

Vector = npt.NDArray[np.float64]

SUPPORT = 200
"""Points that the tasks' models rest on, together: what a decision in a continuous space costs."""
LEARNT = 120
"""Points per task by which the length scales are found."""
TEACHERS = 4
"""Tasks by which the length scales are found."""
AGREEMENT = 0.15
"""Mean correlation of the tasks with each other below which they are not believed (real .40 to .77; shuffled 0)."""
ALONE = 0.5
"""The correlation that is assumed when there is one task only."""
SPREAD = 0.3
"""Standard deviation of the weight of a single task before anything is observed; of n tasks, by the root of n."""
DOUBT = 1.0
"""Standard deviation of all weights together: whether earlier jobs say anything at all of this one."""
SIZE, MOST = 3, 5
"""The least and the most configurations of the portfolio."""
ENOUGH = 0.04
"""The mean regret, expected of the best of the portfolio, at which it is not made larger than SIZE."""
LEADERS = 12
"""Configurations of each task that may come into the portfolio, and near which the search looks."""


@dataclass(frozen=True, slots=True)
class Task:
    """An earlier job: points (n, d), the regret (n,) of each and its variance relative to that at a first rung.

    A regret is a distance from the best one: 0 the best, 1 the median, FAR at most.
    """

    points: Vector
    regrets: Vector
    noise: Vector

    @property
    def scores(self) -> Vector:
        """The score (n,) of each point: lower is better, mean 0, variance 1, and the best are told apart the most.

        Logarithms, because a good search decides between the first few of a thousand, which ranks or normal scores of
        them press together.
        """
        logs, mean, deviation = self._logs()
        return np.asarray((logs - mean) / deviation)

    def regrets_of(self, scores: Vector) -> Vector:
        """The regret of each score (m,)."""
        _, mean, deviation = self._logs()
        return np.asarray(np.clip(np.exp(scores * deviation + mean) - self._least, 0.0, FAR))

    @property
    def _least(self) -> float:
        """What regrets are told apart by: about that of the best of n, one by the root of n."""
        return 1 / math.sqrt(len(self.regrets))

    def _logs(self) -> tuple[Vector, float, float]:
        logs = np.log(self.regrets + self._least)
        return np.asarray(logs), float(logs.mean()), max(float(logs.std()), 1e-9)


class History:
    """The tasks of earlier jobs, ready to be asked; deterministic under `seed`."""

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int = 0,
        *,
        recognises: bool = True,
        support: int = SUPPORT,
        is_doubted: bool = True,
    ) -> None:
        """`recognises`: whether a point that a task has tried keeps its own score. `is_doubted`: whether what the tasks
        call poor is tried too, to see whether they are right."""
        rng = np.random.default_rng(seed)
        self.tasks = tuple(tasks)
        self.is_doubted = is_doubted
        self._hyper = self._lengths(rng)
        self._support, self._weights = self._models(rng, support)
        self._known: dict[bytes, Vector] = {}
        if recognises:
            self._recognise()
        self.leaders = self._leaders()
        self.agreement = self._agreement()

    @property
    def is_trusted(self) -> bool:
        """Whether the tasks agree enough to be believed at first."""
        return self.agreement >= AGREEMENT

    def prepare(self, points: Vector) -> None:
        """Compute once what the tasks say of a list of points that will be asked for again and again."""
        self._known |= dict(zip((point.tobytes() for point in rounded(points)), self.features(points), strict=True))

    def features(self, points: Vector) -> Vector:
        """Each task's score (m, tasks) of points (m, d)."""
        found = np.empty((len(points), len(self.tasks)))
        unknown = []
        for row, point in enumerate(rounded(points)):
            known = self._known.get(point.tobytes()) if self._known else None
            if known is None:
                unknown.append(row)
            else:
                found[row] = known
        if unknown:
            found[unknown] = self._modelled(points[unknown])
        return found

    def portfolio(self, offered: Vector) -> Vector:
        """Points (SIZE to MOST, d) of those `offered` to begin with: for each task one that has little regret.

        Once the best that each task offers is among them, second bests.
        """
        by_task = zip(self.tasks, self.features(offered).T, strict=True)
        regrets = np.column_stack([task.regrets_of(scores) for task, scores in by_task])
        nothing = np.full(len(self.tasks), np.inf)
        best, left = nothing, nothing
        chosen: list[int] = []
        while len(chosen) < min(SIZE, len(regrets)) or (len(chosen) < min(MOST, len(regrets)) and best.mean() > ENOUGH):
            if not (regrets < left).any():
                left = nothing
            chosen.append(int(np.argmin(np.minimum(regrets, left).mean(axis=1))))
            best, left = (np.minimum(each, regrets[chosen[-1]]) for each in (best, left))
            regrets[chosen[-1]] = np.inf
        return np.asarray(offered[chosen])

    def poor(self, offered: Vector, shares: Sequence[float]) -> Vector:
        """Points of those `offered`, one for each share: it is expected to be worse than that share of them."""
        if not len(offered):
            return offered
        order = np.argsort(self.features(offered).mean(axis=1), kind="stable")
        return np.asarray(offered[[order[int(share * (len(order) - 1))] for share in shares]])

    def weights(self, points: Vector, scores: Vector, noise: Vector) -> Vector:
        """The intercept and each task's weight (1 + tasks,) after these scores were observed with these variances."""
        count = len(self.tasks)
        before = np.concatenate(([0.0], np.full(count, self._expected)))
        covariance = np.eye(1 + count)
        covariance[1:, 1:] = np.eye(count) * SPREAD**2 / count + (DOUBT / count) ** 2
        precision = np.linalg.inv(covariance)
        design = np.column_stack((np.ones(len(points)), self.features(points)))
        weighted = design / noise[:, None]
        normal = design.T @ weighted + precision
        return np.asarray(np.linalg.solve(normal, weighted.T @ scores + precision @ before))

    def belief(self, weights: Vector) -> float:
        """How far the tasks are believed after these weights were found: 1 until half of what they promised is lost."""
        return float(np.clip(2 * weights[1:].mean() / self._expected, 0.0, 1.0))

    @property
    def _expected(self) -> float:
        """The weight of each task before anything is observed."""
        return self.agreement / (1 + (len(self.tasks) - 1) * self.agreement)

    def mean(self, points: Vector, weights: Vector) -> Vector:
        """What the weighted tasks expect of points (m, d)."""
        return np.asarray(weights[0] + self.features(points) @ weights[1:])

    def _lengths(self, rng: np.random.Generator) -> Vector:
        """Hyperparameters that suit the tasks: the mean of those found for the largest ones."""
        largest = sorted(range(len(self.tasks)), key=lambda n: (-len(self.tasks[n].points), n))[:TEACHERS]
        found = []
        for task in (self.tasks[n] for n in largest):
            chosen = rng.permutation(len(task.points))[:LEARNT]
            model = GaussianProcess(task.points[chosen], task.scores[chosen], task.noise[chosen], rng, moves=120)
            found.append(model.hyper)
        return np.asarray(np.mean(found, axis=0))

    def _models(self, rng: np.random.Generator, count: int) -> tuple[Vector, Vector]:
        """The points that the models rest on (n, d) and each task's coefficients (n, tasks) over them."""
        everything = np.unique(np.concatenate([task.points for task in self.tasks]), axis=0)
        support = everything[np.sort(rng.permutation(len(everything))[:count])]
        rows = {point.tobytes(): row for row, point in enumerate(support)}
        coefficients = np.zeros((len(support), len(self.tasks)))
        variance = math.exp(self._hyper[-1])
        for column, task in enumerate(self.tasks):
            pairs = [(rows[p.tobytes()], n) for n, p in enumerate(task.points) if p.tobytes() in rows]
            places, mine = (list(each) for each in zip(*pairs, strict=True)) if pairs else ([], [])
            if not mine:
                continue
            kernel = GaussianProcess.kernel(task.points[mine], task.points[mine], self._hyper)
            kernel[np.diag_indices_from(kernel)] += variance * task.noise[mine] + 1e-6
            solved = cho_solve(cho_factor(kernel, lower=True), task.scores[mine])
            np.add.at(coefficients[:, column], places, solved)
        return support, coefficients

    def _modelled(self, points: Vector) -> Vector:
        return np.asarray(GaussianProcess.kernel(points, self._support, self._hyper) @ self._weights)

    def _recognise(self) -> None:
        known: dict[bytes, list[tuple[int, float]]] = {}
        where: dict[bytes, Vector] = {}
        for column, task in enumerate(self.tasks):
            for point, score in zip(task.points, task.scores, strict=True):
                known.setdefault(fingerprint(point), []).append((column, float(score)))
                where[fingerprint(point)] = point
        rows = self._modelled(np.array(list(where.values())))
        for row, told in zip(rows, known.values(), strict=True):
            for column, score in told:
                row[column] = score
        self._known = dict(zip(known, rows, strict=True))

    def _leaders(self) -> Vector:
        best = [task.points[np.argsort(task.scores, kind="stable")[:LEADERS]] for task in self.tasks]
        return np.unique(np.concatenate(best), axis=0)

    def _agreement(self) -> float:
        """The mean correlation of the tasks with each other over the points that they rest on."""
        if len(self.tasks) == 1:
            return ALONE
        features = self.features(self._support)
        spread = features.std(axis=0)
        if (spread < 1e-9).any():
            return 0.0
        pairs = np.atleast_2d(np.corrcoef(features.T))[np.triu_indices(len(self.tasks), 1)]
        return float(max(0.0, pairs.mean()))
