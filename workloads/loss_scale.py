"""Which fp16 loss scale fits the gradients that were measured, and what is to be said of how it went; pure."""

from __future__ import annotations

from dataclasses import dataclass

from workloads.magnitudes import LARGEST, Magnitudes

HEADROOM = 4  # powers of two between the largest gradient seen and infinity: norms jump
FLUSHED_LIMIT = 0.01  # of the parameters' gradients
LARGEST_EXPONENT = 24
SKIPPED_LIMIT = 0.1
USUAL_SCALE = 2048.0


@dataclass(frozen=True, slots=True)
class ScaleChoice:
    """The loss scales that hold the gradients: from `floor`, below which too many are flushed to zero, to `ceiling`,
    above which the next larger gradient may overflow. `floor` above `ceiling`: there is none.
    """

    floor: float
    ceiling: float
    underflow: dict[str, float]

    @property
    def is_empty(self) -> bool:
        return self.floor > self.ceiling

    @property
    def scale(self) -> float:
        """The largest one: an overflow costs a step and is seen, an underflow is silent."""
        return self.ceiling

    @staticmethod
    def of(parameters: Magnitudes, activations: Magnitudes) -> ScaleChoice | None:
        """From the gradients of parameters, which must not be flushed, and of activations, which must not overflow
        either. Those of activations may be flushed: of a model that is sure of itself most are next to nothing. None
        where all gradients are zero.
        """
        largest = [m.largest for m in (parameters, activations) if m.largest is not None]
        if parameters.largest is None:
            return None
        high = min(LARGEST_EXPONENT, LARGEST - HEADROOM - max(largest))
        scales = range(LARGEST_EXPONENT + 1)
        low = next((s for s in scales if parameters.flushed(2.0**s) <= FLUSHED_LIMIT), LARGEST_EXPONENT + 1)
        choice = 2.0 ** max(0, high)
        told = {name: round(parameters.flushed(s), 6) for name, s in (("1", 1.0), ("2048", USUAL_SCALE))}
        told["chosen"] = round(parameters.flushed(choice), 6)
        told["activations"] = round(activations.flushed(choice), 6)
        return ScaleChoice(2.0**low, 2.0**high, told)


def judge(  # noqa: PLR0917 - what was measured, and what came of it
    choice: ScaleChoice | None, scale: float, skipped: int, steps: int, flushed: float, start: float | None = None
) -> str | None:
    """What is wrong with how the loss scale went, and the way out; None where nothing is.

    `scale` is the one at the end, `start` the one that was asked for, `flushed` the share of the parameters' gradients
    that `scale` flushes.
    """
    if choice is not None and choice.is_empty:
        return (
            f"no loss scale holds these gradients: {choice.floor:g} would keep the small ones, and above "
            f"{choice.ceiling:g} the large ones overflow; use bf16"
        )
    if skipped and choice is not None and start is not None and start > choice.ceiling * 2**HEADROOM:
        return (
            f"a loss scale of {start:g} overflows: {skipped} of {steps} steps were skipped until it was {scale:g}; "
            f"start at {choice.scale:g}, or leave it to auto"
        )
    if steps and skipped > SKIPPED_LIMIT * steps:
        return f"skipped {skipped} of {steps} steps: lower the learning rate or use bf16"
    if flushed > FLUSHED_LIMIT and choice is not None and scale < choice.floor:
        return (
            f"a loss scale of {scale:g} flushes {flushed:.1%} of the gradients to zero; raise it to {choice.scale:g}, "
            "or leave it to auto"
        )
    return None
