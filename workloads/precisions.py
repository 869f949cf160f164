"""Which precision to train in, by what short runs in each of them have shown; pure, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDS, STEPS, WARM_UP = 2, 8, 2
"""Each precision takes turns with the others, as the machine may be busier at one time than at another."""
FASTER = 1.3
"""How many times faster than the usual one another precision has to be."""
TOLERANCE = 0.02
"""Of the loss in fp32: a loss farther off is wrong."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Some steps in a precision: the median time of one and the last loss, None where it diverged; `reason` is how."""

    precision: str
    step_s: float
    loss: float | None
    reason: str | None = None


def choose(tried: Sequence[Tried], usual: str) -> str:
    """The precision `usual` on this device, unless its loss is wrong there or another one is much faster."""
    by_name = {each.precision: each for each in tried}
    reference = by_name["fp32"].loss if "fp32" in by_name else None
    sound = [each for each in tried if _is_sound(each, reference)]
    if not sound:
        return usual
    fastest = min(sound, key=lambda each: each.step_s)
    if by_name.get(usual) not in sound:
        return fastest.precision
    return fastest.precision if fastest.step_s * FASTER < by_name[usual].step_s else usual


def _is_sound(tried: Tried, reference: float | None) -> bool:
    if tried.loss is None:
        return False
    return reference is None or abs(tried.loss - reference) <= TOLERANCE * abs(reference)
