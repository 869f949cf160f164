"""A small Gaussian process with a Matern 5/2 kernel, one length scale per parameter, and known relative noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

Vector = npt.NDArray[np.float64]

MOVES, FIRST_MOVES = 6, 40
"""Steps of hill climbing in a fit, and in the first one."""
MANY, MANY_MOVES = 80, 2
"""From so many values on, which say more and cost more, as many steps."""


def nothing(points: Vector) -> Vector:
    """The mean of a process of which nothing is known: 0 everywhere."""
    return np.zeros(len(points))


class GaussianProcess:
    """Fitted to `values` (n,) at `points` (n, d) of the unit cube; `noise` (n,) is the relative variance of each value.

    The hyperparameters (log length scales, log noise) are found by hill climbing on the posterior density with
    log-normal priors, from `hyper` of an earlier fit where given.
    """

    def __init__(
        self,
        points: Vector,
        values: Vector,
        noise: Vector,
        rng: np.random.Generator,
        hyper: Vector | None = None,
        *,
        moves: int | None = None,
        prior: Callable[[Vector], Vector] = nothing,
    ) -> None:
        self.points, self._relative, self._mean = points, noise, prior
        self._told = values
        self._values = values - prior(points)
        dimensions = points.shape[1]
        self._prior = np.concatenate((np.full(dimensions, math.log(0.4 * math.sqrt(dimensions))), [math.log(0.3)]))
        self.hyper = self._prior.copy() if hyper is None else hyper
        solved = self._solve(self.hyper)
        best = self._density(self.hyper, *solved)
        if moves is None:
            moves = FIRST_MOVES if hyper is None else MOVES if len(points) < MANY else MANY_MOVES
        for _ in range(moves):
            moved = self.hyper + rng.normal(0, 0.4, len(self.hyper)) * (rng.random(len(self.hyper)) < 0.4)
            tried = self._solve(moved)
            density = self._density(moved, *tried)
            if density > best:
                best, self.hyper, solved = density, moved, tried
        self._factor, self._weights = solved

    @property
    def noise(self) -> float:
        """The variance of a value whose relative noise is 1."""
        return float(math.exp(self.hyper[-1]))

    def predict(self, points: Vector) -> tuple[Vector, Vector]:
        """Posterior mean and standard deviation (m,) at `points` (m, d)."""
        cross = self.kernel(points, self.points, self.hyper)
        return cross @ self._weights + self._mean(points), self._deviation(cross)

    def promising(self, points: Vector, count: int) -> tuple[npt.NDArray[np.intp], Vector, Vector]:
        """The indices of the `count` points with the least means, their means and deviations, which cost the most."""
        cross = self.kernel(points, self.points, self.hyper)
        mean = cross @ self._weights + self._mean(points)
        chosen = np.argsort(mean, kind="stable")[:count]
        return chosen, mean[chosen], self._deviation(cross[chosen])

    def drawn(self, points: Vector, rng: np.random.Generator) -> Vector:
        """One function of the posterior at `points` (m, d): what may be true of them together."""
        cross = self.kernel(points, self.points, self.hyper)
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        covariance = self.kernel(points, points, self.hyper) - half.T @ half
        covariance[np.diag_indices_from(covariance)] += 1e-4
        root = cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        return np.asarray(cross @ self._weights + self._mean(points) + root @ rng.normal(size=len(points)))

    def fitted(self) -> Vector:
        """The posterior mean (n,) at the points that it was fitted to."""
        return self._told - self._jitter(self.hyper) * self._weights

    def believing(self, points: Vector, noise: float) -> GaussianProcess:
        """The same with the points that are being tried now, at what is expected of them (a kriging believer)."""
        told = GaussianProcess.__new__(GaussianProcess)
        told.hyper, told._prior, told._mean = self.hyper, self._prior, self._mean
        told.points = np.concatenate((self.points, points))
        told._told = np.concatenate((self._told, self.predict(points)[0]))
        told._values = told._told - self._mean(told.points)
        told._relative = np.concatenate((self._relative, np.full(len(points), noise)))
        told._factor, told._weights = told._solve(self.hyper)
        return told

    def _deviation(self, cross: Vector) -> Vector:
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        return np.asarray(np.sqrt(np.maximum(1.0 - (half**2).sum(0), 1e-9)))

    def _jitter(self, hyper: Vector) -> Vector:
        return np.asarray(self._relative * math.exp(hyper[-1]) + 1e-6)

    def _solve(self, hyper: Vector) -> tuple[Vector, Vector]:
        kernel = self.kernel(self.points, self.points, hyper)
        kernel[np.diag_indices_from(kernel)] += self._jitter(hyper)
        factor = cholesky(kernel, lower=True, overwrite_a=True, check_finite=False)
        return factor, cho_solve((factor, True), self._values, check_finite=False)

    def _density(self, hyper: Vector, factor: Vector, weights: Vector) -> float:
        """The logarithm of the posterior density of hyperparameters, up to a constant."""
        fit = -0.5 * float(self._values @ weights) - float(np.log(np.diag(factor)).sum())
        return fit - 0.5 * float((((hyper - self._prior) / 0.8) ** 2).sum())

    @staticmethod
    def kernel(left: Vector, right: Vector, hyper: Vector) -> Vector:
        """The covariances (n, m) of points (n, d) with points (m, d)."""
        scale = np.exp(-hyper[:-1])
        a, b = left * scale, right * scale
        distance = a @ (-2 * b.T)  # and from here on in place: this is what a decision costs
        distance += (a**2).sum(1)[:, None]
        distance += (b**2).sum(1)[None, :]
        np.maximum(distance, 0, out=distance)
        distance *= 5
        np.sqrt(distance, out=distance)
        kernel = distance / 3
        kernel += 1
        kernel *= distance
        kernel += 1
        np.negative(distance, out=distance)
        kernel *= np.exp(distance, out=distance)
        return np.asarray(kernel)
