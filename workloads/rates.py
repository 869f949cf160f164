"""What short runs at several learning rates say: which of them train; pure, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MIN_RATES, MAX_RATES = 5, 9
MIN_STEPS, GOOD_STEPS, MAX_STEPS = 10, 20, 100
MIN_TOTAL = (MIN_RATES + 1) * MIN_STEPS
LEAST = 0.005
"""Of the untrained loss: where the best rate removes less, none trains."""
NOTICEABLE = 0.1
"""Of what the best rate removes of the loss: a rate that removes less does not train."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A short run and its last training loss; `loss` is None where it diverged, and `reason` says how."""

    lr: float
    loss: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RateRange:
    """Between `low` and `high` training gets anywhere; `best` went furthest in these few steps.

    The rates next to those that train bound it, as a longer run may train at a lower rate, and one with a longer
    warm-up at a higher one; towards one that diverges only half of the way does. Training diverges at `diverges_at`
    and at all higher rates that were tried, None: at none.
    """

    low: float
    high: float
    best: float
    diverges_at: float | None


def log_spaced(low: float, high: float, count: int) -> list[float]:
    """`count` rates from `low` to `high`, each the same factor above the one before."""
    return [low * (high / low) ** (place / (count - 1)) for place in range(count - 1)] + [high]


def plan(steps: int) -> tuple[int, int] | None:
    """How many rates for how many steps each, with `steps` altogether, a run without training among them.

    None where that is too little to see anything. Rather fewer rates than short runs, and rather few steps than none.
    """
    rates = max(MIN_RATES, min(MAX_RATES, steps // GOOD_STEPS - 1))
    each = min(MAX_STEPS, steps // (rates + 1))
    return (rates, each) if each >= MIN_STEPS else None


def judge(rates: Sequence[Rate], untrained: float) -> RateRange | None:
    """The range that `rates`, in ascending order, leave; None where none of them lowers the loss.

    `untrained` is the loss of the same batches without training.
    """
    falls = [-math.inf if rate.loss is None else untrained - rate.loss for rate in rates]
    best = max(falls)
    if best <= LEAST * abs(untrained):
        return None
    trains = [place for place, fall in enumerate(falls) if fall >= NOTICEABLE * best]
    low, above = rates[max(0, trains[0] - 1)].lr, range(trains[-1] + 1, len(rates))
    worse = [rates[place].lr for place in above if falls[place] < 0]
    diverges_at = worse[0] if worse and falls[-1] < 0 else None
    high = rates[min(len(rates) - 1, trains[-1] + 1)].lr
    if high == diverges_at:
        high = math.sqrt(rates[trains[-1]].lr * high)
    return RateRange(low, high, rates[falls.index(best)].lr, diverges_at)


def too_little(steps: float) -> str:
    """Why nothing is tested with a share of so many steps."""
    return f"its share of the budget is {steps:.0f} steps, and it takes {MIN_TOTAL}"
