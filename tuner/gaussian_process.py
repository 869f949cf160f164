"""A small Gaussian process with a Matern 5/2 kernel, one length scale per parameter, and known relative noise."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, cholesky, solve_triangular

Vector = npt.NDArray[np.float64]

MOVES = 6
FIRST_MOVES = 40


class GaussianProcess:
    """Fitted to `values` (n,) at `points` (n, d) of the unit cube; `noise` (n,) is the relative variance of each value.

    The hyperparameters (log length scales, log noise) are found by hill climbing on the posterior density with
    log-normal priors, from `hyper` of an earlier fit where given.
    """

    def __init__(
        self, points: Vector, values: Vector, noise: Vector, rng: np.random.Generator, hyper: Vector | None = None
    ) -> None:
        self.points, self._values, self._relative = points, values, noise
        dimensions = points.shape[1]
        self._prior = np.concatenate((np.full(dimensions, math.log(0.4 * math.sqrt(dimensions))), [math.log(0.3)]))
        self.hyper = self._prior.copy() if hyper is None else hyper
        best = self._density(self.hyper)
        for _ in range(FIRST_MOVES if hyper is None else MOVES):
            moved = self.hyper + rng.normal(0, 0.4, len(self.hyper)) * (rng.random(len(self.hyper)) < 0.4)
            density = self._density(moved)
            if density > best:
                best, self.hyper = density, moved
        self._factor, self._weights = self._solve(self.hyper)

    @property
    def noise(self) -> float:
        """The variance of a value whose relative noise is 1."""
        return float(math.exp(self.hyper[-1]))

    def predict(self, points: Vector) -> tuple[Vector, Vector]:
        """Posterior mean and standard deviation (m,) at `points` (m, d)."""
        cross = self._kernel(points, self.points, self.hyper)
        mean = cross @ self._weights
        half = solve_triangular(self._factor, cross.T, lower=True, check_finite=False)
        return mean, np.sqrt(np.maximum(1.0 - (half**2).sum(0), 1e-9))

    def believing(self, points: Vector, noise: float) -> GaussianProcess:
        """The same with the points that are being tried now, at what is expected of them (a kriging believer)."""
        told = GaussianProcess.__new__(GaussianProcess)
        told.hyper, told._prior = self.hyper, self._prior
        told.points = np.concatenate((self.points, points))
        told._values = np.concatenate((self._values, self.predict(points)[0]))
        told._relative = np.concatenate((self._relative, np.full(len(points), noise)))
        told._factor, told._weights = told._solve(self.hyper)
        return told

    def _solve(self, hyper: Vector) -> tuple[Vector, Vector]:
        kernel = self._kernel(self.points, self.points, hyper)
        kernel[np.diag_indices_from(kernel)] += self._relative * math.exp(hyper[-1]) + 1e-6
        factor = cholesky(kernel, lower=True, check_finite=False)
        return factor, cho_solve((factor, True), self._values, check_finite=False)

    def _density(self, hyper: Vector) -> float:
        factor, weights = self._solve(hyper)
        fit = -0.5 * float(self._values @ weights) - float(np.log(np.diag(factor)).sum())
        return fit - 0.5 * float((((hyper - self._prior) / 0.8) ** 2).sum())

    @staticmethod
    def _kernel(left: Vector, right: Vector, hyper: Vector) -> Vector:
        scale = np.exp(-hyper[:-1])
        a, b = left * scale, right * scale
        squared = (a**2).sum(1)[:, None] + (b**2).sum(1)[None, :] - 2 * a @ b.T
        distance = np.sqrt(5 * np.maximum(squared, 0))
        return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))
