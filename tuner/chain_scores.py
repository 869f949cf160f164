"""The standings at each rung, and *chain scores*: all trials on one scale, without a model of the curve.

At the first rung a score is the normal score of the value's rank among all; at each later rung the trials that got
there deal out their scores anew among themselves, in the order of their values there. Trials with equal values share
the mean of what they are dealt: which of them came first says nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import numpy as np
from scipy.special import ndtri

FAR = 9.0
"""The largest distance from the best, in units of the median's, that is told from others."""


class Standings:
    """The trials that have reached each rung, in the order of their values there; lower is better, infinity the worst.

    Where one has to be named, what is equal goes by the number of the trial.
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
        scores: dict[int, float] = {}
        for there in self._reached:
            dealt = sorted(scores[number] for _, number in there) if scores else normal
            scores |= zip((number for _, number in there), _shared(dealt, there), strict=True)
        return scores

    def regrets(self) -> dict[int, float]:
        """Every trial's distance from the best one by number: 0 the best, 1 the median of what is finite, FAR at most.

        As with the scores, each later rung measures those that got there anew: the median of them keeps its distance.
        """
        found: dict[int, float] = {}
        for there in self._reached:
            if not there:
                break
            values = np.array([value for value, _ in there])
            numbers = [number for _, number in there]
            middle = float(np.median([found[number] for number in numbers])) if found else 1.0
            finite = values[np.isfinite(values)]
            away = np.where(values > values[0], FAR, 0.0)
            if len(finite) and (median := float(np.median(finite)) - values[0]) > 0:
                away[: len(finite)] = (finite - values[0]) / median * middle
            found |= zip(numbers, np.minimum(away, FAR).tolist(), strict=True)
        return found


def _shared(dealt: list[float], there: Sequence[tuple[float, int]]) -> list[float]:
    """The scores in the order of the values, equal values with the mean of theirs."""
    if len({value for value, _ in there}) == len(there):
        return dealt
    found: list[float] = []
    for _, equal in groupby(there, key=itemgetter(0)):
        count = len(list(equal))
        found += [sum(dealt[len(found) : len(found) + count]) / count] * count
    return found
