"""The standings at each rung, and *chain scores*: all trials on one scale, without a model of the curve.

At the first rung a score is the normal score of the value's rank among all; at each later rung the trials that got
there deal out their scores anew among themselves, in the order of their values there.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from scipy.special import ndtri


class Standings:
    """The trials that have reached each rung, in the order of their values there; lower is better, infinity the worst.

    What is equal goes by the number of the trial.
    """

    def __init__(self, rungs: int) -> None:
        self._reached: list[list[tuple[float, int]]] = [[] for _ in range(rungs)]

    def add(self, number: int, rung: int, value: float) -> None:
        insort(self._reached[rung], (value, number))

    def remove(self, number: int, rung: int, value: float) -> None:
        del self._reached[rung][bisect_left(self._reached[rung], (value, number))]

    def count(self, rung: int) -> int:
        return len(self._reached[rung])

    def best(self, rung: int, count: int) -> list[int]:
        """The best `count` trials at a rung, the best first."""
        return [number for _, number in self._reached[rung][:count]]

    def place(self, number: int, rung: int, value: float) -> int:
        """How many trials are better than this one at a rung."""
        return bisect_left(self._reached[rung], (value, number))

    def compared_rung(self) -> int:
        """The last rung that two trials have reached, so that one has been shown to be better; 0 at least."""
        return max((rung for rung, there in enumerate(self._reached) if len(there) > 1), default=0)

    def scores(self) -> dict[int, float]:
        """The chain score of every trial by number; lower is better."""
        count = len(self._reached[0])
        normal = ndtri((np.arange(count) + 0.5) / max(count, 1)).tolist()
        scores = {number: score for (_, number), score in zip(self._reached[0], normal, strict=True)}
        for there in self._reached[1:]:
            dealt = sorted(scores[number] for _, number in there)
            for score, (_, number) in zip(dealt, there, strict=True):
                scores[number] = score
        return scores
