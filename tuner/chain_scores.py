"""*Chain scores*: all trials on one scale, though they have come to different rungs, without a model of the curve.

At the first rung a score is the normal score of the value's rank among all; at each later rung the trials that got
there deal out their scores anew among themselves, in the order of their values there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist


def chain_scores(values: Mapping[int, Sequence[float]]) -> dict[int, float]:
    """The score of every trial by number; lower is better. `values` are its values at the rungs that it has reached.

    Lower values are better, infinity is the worst; what is equal goes by number.
    """
    scores = {}
    for place, number in enumerate(sorted(values, key=lambda n: (values[n][0], n))):
        scores[number] = NormalDist().inv_cdf((place + 0.5) / len(values))
    rung, there = 1, [number for number in values if len(values[number]) > 1]
    while len(there) > 1:
        dealt = sorted(scores[number] for number in there)
        for score, number in zip(dealt, sorted(there, key=lambda n: (values[n][rung], n)), strict=True):
            scores[number] = score
        rung += 1
        there = [number for number in there if len(values[number]) > rung]
    return scores


def compared_rung(values: Mapping[int, Sequence[float]]) -> int:
    """The last rung that two trials have reached, so that one of them has been shown to be better; 0 at least."""
    reached = sorted((len(each) for each in values.values()), reverse=True)
    return max(0, reached[1] - 1) if len(reached) > 1 else 0
