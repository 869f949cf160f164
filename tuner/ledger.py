"""What a job has spent and may still spend, running probes included."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable

from tuner.assignment import SlotReport
from tuner.budget import JOULES_PER_KWH, Reserve, Spent, device_seconds_cap, exhausted, may_start
from tuner.jobspec import ResolvedJob
from tuner.records import Confirmation, Outcome, StopReason
from tuner.search import Closed

CONFIRM_SHARE = 0.7  # confirmation may be promised at most this share of a cap; more would starve the search


class Ledger:
    """The accounts of one job. `running` yields the last report of every run that is in a slot now."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        slots: int,
        earlier_seconds: float,
        earlier_energy_j: float = 0.0,
        running: Callable[[], Iterable[SlotReport]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget = job.budget
        self.horizon = job.fidelity.max  # may be learnt later
        self._confirm_runs = job.confirm.runs
        self._device_share = job.resources.gpus or 1.0
        self._slots = slots
        self._running = running
        self._clock = clock
        self._began = clock() - earlier_seconds
        self._done = Spent(energy_j=earlier_energy_j)
        self._told: dict[int, float] = {}
        self._paused: dict[int, float] = {}
        self._full_run_seconds: float | None = None

    @property
    def seconds(self) -> float:
        """Wall seconds over all attempts at the job."""
        return self._clock() - self._began

    @property
    def device_seconds(self) -> float:
        return self._spent().device_seconds

    def add_trial(self, closed: Closed) -> None:
        """A trial has ended, all its probes with it; lost ones cost device time but do not count as trials."""
        self._done.trials += closed.outcome != Outcome.LOST
        self._done.full_runs += closed.full_runs
        self._done.device_seconds += closed.device_seconds - self._told.pop(closed.number, 0.0)
        self._paused.pop(closed.number, None)
        if closed.outcome == Outcome.OK and closed.device_seconds > 0:
            seconds = closed.device_seconds / self._device_share
            self._full_run_seconds = max(self._full_run_seconds or 0.0, seconds)

    def add_probe(self, trial: int, device_seconds: float) -> None:
        """A probe of a trial has ended, not the trial."""
        self._done.device_seconds += device_seconds
        self._told[trial] = self._told.get(trial, 0.0) + device_seconds

    def pause(self, trial: int, position: float) -> None:
        """A trial stands at this position until another probe goes on with it."""
        self._paused[trial] = min(1.0, position / self.horizon)

    def go_on(self, trial: int) -> None:
        """A probe says from now on where the trial is."""
        self._paused.pop(trial, None)

    def add_confirmation(self, run: Confirmation) -> None:
        """A confirmation run has ended; it counts as a full run whatever became of it."""
        if run.outcome != Outcome.LOST:
            self._done.full_runs += 1
        if run.probe is not None:
            self._done.device_seconds += run.probe.device_seconds

    def add_seconds(self, device_seconds: float) -> None:
        """Something else than a trial or a confirmation has taken device time."""
        self._done.device_seconds += device_seconds

    def add_energy(self, energy_j: float | None) -> None:
        """A probe has ended that took this; what earlier attempts took is known from the start."""
        self._done.energy_j += energy_j or 0.0

    def may_start(self, searching: int) -> StopReason | None:
        """Why no further trial may start while `searching` are running and others are paused, or None."""
        spent = self._spent()
        spent.trials += searching + len(self._paused)
        return may_start(self._budget, spent, self._reserve())

    def search_is_cut(self) -> StopReason | None:
        """The cap that ends even running trials, what confirmation needs kept back."""
        return exhausted(self._budget, self._spent(), self._reserve())

    def is_spent(self) -> StopReason | None:
        """The cap that ends everything, confirmation included."""
        return exhausted(self._budget, self._spent(), Reserve())

    def left_s(self) -> float:
        """Seconds of one slot until a cap in time or money is reached; infinite without any."""
        budget, left = self._budget, [math.inf]
        if budget.seconds is not None:
            left.append(budget.seconds - self.seconds)
        if (cap := device_seconds_cap(budget)) is not None:
            left.append((cap[0] - self.device_seconds) / self._device_share)
        return max(0.0, min(left))

    def has_room_for(self, runs: int) -> bool:
        """Whether every cap leaves room for `runs` more full runs."""
        return exhausted(self._budget, self._spent(), self._reserve_for(runs)) is None

    def can_afford_confirmation(self) -> bool:
        """Whether the budget can pay for confirmation and still leave something to search with."""
        budget, whole = self._budget, self._reserve_for(self._confirm_runs)
        limits = [(budget.full_runs, whole.full_runs), (budget.seconds, whole.seconds)]
        if budget.device_hours is not None:
            limits.append((budget.device_hours * 3600, whole.device_seconds))
        if budget.cost is not None:
            limits.append((budget.cost.amount / budget.cost.per_device_hour * 3600, whole.device_seconds))
        if budget.energy_kwh is not None:
            limits.append((budget.energy_kwh * JOULES_PER_KWH, self._spent().watts * whole.device_seconds))
        return all(cap is None or need <= CONFIRM_SHARE * cap for cap, need in limits)

    def _reserve(self) -> Reserve:
        return self._reserve_for(self._confirm_runs) if self.can_afford_confirmation() else Reserve()

    def _reserve_for(self, runs: int) -> Reserve:
        return Reserve.for_runs(runs, self._full_run_seconds, self._device_share, self._slots)

    def _spent(self) -> Spent:
        now = list(self._running())
        return Spent(
            trials=self._done.trials,
            full_runs=self._done.full_runs
            + sum(min(1.0, r.position / self.horizon) for r in now)
            + sum(self._paused.values()),
            device_seconds=self._done.device_seconds + sum(r.probe.device_seconds for r in now),
            seconds=self.seconds,
            energy_j=self._done.energy_j + sum(r.probe.energy_j or 0.0 for r in now),
        )
