"""When more trials are not worth their compute: what they may still gain is less than chance moves a result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

NEXT = 10
"""Configurations that are taken together: they gain at most so many times what one is expected to."""
ENOUGH = 3
"""Degrees of freedom that the noise between seeds needs to be known."""


def is_converged(expected_gain: float | None, noise: float | None) -> bool:
    """Whether the next configurations together are expected to gain less than the noise of a single result.

    `expected_gain` is of one configuration (`FreezeThaw.expected_gain`); both in units of the metric. What is not known
    (None) never ends a search, nor does a metric without noise.
    """
    return expected_gain is not None and noise is not None and NEXT * expected_gain < noise


def seed_noise(groups: Iterable[Sequence[float]]) -> float | None:
    """The standard deviation between seeds, pooled over configurations; None when it is not known well enough.

    Each group holds the results of one configuration on several seeds, such as confirmation runs.
    """
    deviations, freedom = 0.0, 0
    for group in groups:
        values = np.asarray(group, dtype=float)
        values = values[np.isfinite(values)]
        if len(values) > 1:
            deviations += float(((values - values.mean()) ** 2).sum())
            freedom += len(values) - 1
    return float(np.sqrt(deviations / freedom)) if freedom >= ENOUGH else None
