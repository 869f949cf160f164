"""How far a run goes and when it reports: the one home of the arithmetic of the fidelity axis.

On the samples, tokens and steps axes everything follows from the step. On the seconds axis elapsed time decides:
each step's position is read from the clock once, when that step is first asked about.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from workloads.contract import Fidelity

UNREACHED_STEPS = 10**12
"""The planned steps of a run that ends by the clock, or by itself as long as nobody knows how long a full run is."""


class Horizon:
    """The plan of one run; steps count from 1.

    Steps have to be asked about in ascending order on the seconds axis; on the others any order will do.
    """

    def __init__(self, fidelity: Fidelity, units_per_step: float | None, clock: Callable[[], float]) -> None:
        self.fidelity = fidelity
        self._units_per_step = units_per_step  # None: the clock decides
        self._clock = clock
        self._began = clock()
        self._step, self._position = 0, 0.0
        self._due_step, self._due_index = 0, 0
        is_counted = units_per_step is not None and fidelity.is_known
        self.steps = _steps(fidelity.max, units_per_step) if is_counted and units_per_step else UNREACHED_STEPS

    @classmethod
    def of(
        cls,
        fidelity: Fidelity,
        batch_size: int,
        tokens_per_sample: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Horizon:
        """The horizon of a run; time counts from here, in the seconds of `clock`.

        Raises ValueError for the tokens axis without `tokens_per_sample`, and for a batch size below 1.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it has to be at least 1")
        if fidelity.axis == "tokens" and not tokens_per_sample:
            raise ValueError("the tokens axis needs a workload that says how many tokens a sample has")
        units = {"samples": batch_size, "tokens": batch_size * (tokens_per_sample or 0), "steps": 1, "seconds": None}
        return cls(fidelity, units[fidelity.axis], clock)

    def position(self, step: int) -> float:
        """Where the run is on the fidelity axis after `step` steps; the last step may pass `fidelity.max`."""
        if self._units_per_step is not None:
            return step * self._units_per_step
        if step > self._step:
            self._step, self._position = step, self._clock() - self._began
        return self._position

    def progress(self, step: int) -> float:
        """The fraction of the run that is done after `step` steps: by steps (1 at the last one), or by time."""
        if self._units_per_step is not None:
            return step / self.steps
        return min(1.0, self.position(step) / self.fidelity.max)

    def is_over(self, step: int) -> bool:
        """Whether `step` is the last one."""
        return step >= self.steps or (self._units_per_step is None and self.position(step) >= self.fidelity.max)

    def due(self, step: int) -> bool:
        """Whether a report is due after `step`: the report index has grown since the last due step, or it is over.

        Every step, while nobody knows how long a full run is.
        """
        if step < 1:
            return False
        if not self.fidelity.is_known:
            return True
        index = self.fidelity.index(self.position(step))
        if self._units_per_step is not None:
            return step >= self.steps or index > self.fidelity.index(self.position(step - 1))
        if step > self._due_step and index > self._due_index:
            self._due_step, self._due_index = step, index
        return step == self._due_step

    def resume(self, step: int, position: float) -> None:
        """Go on from here: after a report, so that waiting does not count, or from a saved place.

        Only the seconds axis has something to remember.
        """
        self._began = self._clock() - position
        self._step, self._position = step, position
        self._due_step, self._due_index = step, self.fidelity.index(position)


def _steps(total: float, per_step: float) -> int:
    """Enough whole steps to cover `total`; a division that is exact but for rounding takes no extra step."""
    return max(1, math.ceil(total / per_step - 1e-9))
