"""How a search begins that has earlier jobs: with what they recommend, checked against what they call poor.

A *portfolio* of few configurations that complement one another is trained side by side until its members can be told
apart (`CLOSE`). Before that, three configurations that the earlier jobs call poor get a glimpse: where those are no
worse than the portfolio, the earlier jobs are wrong about this one (`is_contradicted`), and the search goes on as if
there were none. Of jobs that agree with one another and are wrong, chance alone would spare one in ten (the rank sum of
three and three); what was tried by then is what a search without earlier jobs would have tried at random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tuner.history import History
from tuner.unit_space import fingerprint

if TYPE_CHECKING:
    from tuner.freeze_thaw import Space, Trial

Vector = npt.NDArray[np.float64]

CLOSE = 0.45
"""The share of its length up to which each of the portfolio is trained before anything else is tried."""
POOR = (0.9, 0.94, 0.98)
"""Which shares of all configurations the poor ones are worse than, by what the earlier jobs expect."""
INVERTED = 0.2
"""The share of pairs (one of the portfolio, one poor) in which the poor one may be better."""
NEAREST = 3
"""Configurations at or near each leader of an earlier job that may come into the portfolio."""
ANYWHERE = 1000
"""Configurations among which the poor ones are sought."""


class Opening:
    """The points to begin with, and which trials have become of them; the same for the same space and history."""

    def __init__(self, history: History, space: Space) -> None:
        rng = np.random.default_rng(0)  # a search that is taken up again opens as it did
        offered = np.unique(np.concatenate([space.near(rng, each, NEAREST) for each in history.leaders]), axis=0)
        anywhere = space.random(rng, ANYWHERE)
        poor = history.poor(anywhere, POOR) if history.is_doubted else ()
        self._good = {fingerprint(point): point for point in history.portfolio(offered)}
        self._all = self._good | {fingerprint(point): point for point in poor}
        self._begun: set[bytes] = set()
        self._trials: dict[int, bool] = {}

    def began(self, number: int, point: Vector) -> None:
        """A trial has begun, from here or from elsewhere: also one that is tried once more because it was lost."""
        told = fingerprint(point)
        if told in self._all:
            self._begun.add(told)
            self._trials[number] = told in self._good

    def next_point(self, *, with_poor: bool) -> Vector | None:
        """The next point to be tried; None when there is none left."""
        points = self._all if with_poor else self._good
        return next((point for key, point in points.items() if key not in self._begun), None)

    def due(self, trials: Sequence[Trial], rungs: Sequence[float]) -> Trial | None:
        """The trial of the portfolio that is paused and has got the least far; None when all have come to CLOSE."""
        paused = [
            trials[n] for n, is_good in self._trials.items() if is_good and trials[n].values and trials[n].is_free
        ]
        far = [trial for trial in paused if rungs[trial.rung] < CLOSE - 1e-9]
        return min(far, key=lambda trial: trial.rung, default=None)

    def is_contradicted(self, trials: Sequence[Trial]) -> bool:
        """Whether, as soon as all have been looked at, too many of the poor ones are better at their first look."""
        is_open = any(not trials[number].values and not trials[number].is_over for number in self._trials)
        if is_open or len(self._begun) < len(self._all):
            return False
        looks = [
            (trials[number].values[0], is_good) for number, is_good in self._trials.items() if trials[number].values
        ]
        good, poor = ([value for value, kind in looks if kind is wanted] for wanted in (True, False))
        inverted = sum((b < a) + 0.5 * (a == b) for a in good for b in poor)
        return inverted > INVERTED * len(good) * len(poor)
