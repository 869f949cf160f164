"""What a job may still spend; pure. The time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from tuner.jobspec import Budget
from tuner.records import StopReason

JOULES_PER_KWH = 3.6e6


@dataclass(slots=True)
class Spent:
    """What a job has spent so far. `seconds` is wall-clock over all attempts."""

    trials: int = 0
    full_runs: float = 0.0
    device_seconds: float = 0.0
    seconds: float = 0.0
    energy_j: float = 0.0

    @property
    def watts(self) -> float:
        """Mean power of what has run, for each device; 0 before anything has."""
        return self.energy_j / self.device_seconds if self.device_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Reserve:
    """What confirmation will need, kept back from the search."""

    full_runs: float = 0.0
    device_seconds: float = 0.0
    seconds: float = 0.0

    @staticmethod
    def for_runs(runs: int, seconds_per_run: float | None, device_share: float, slots: int) -> Reserve:
        """For `runs` full runs on `slots` slots; before any full run is measured only `full_runs` can be known."""
        seconds = (seconds_per_run or 0.0) * runs
        return Reserve(float(runs), seconds * device_share, seconds / max(1, slots))


def device_seconds_cap(budget: Budget) -> tuple[float, StopReason] | None:
    """The tighter of the device-hour and the cost cap, in device seconds."""
    caps = []
    if budget.device_hours is not None:
        caps.append((budget.device_hours * 3600, StopReason.DEVICE_HOURS))
    if budget.cost is not None:
        caps.append((budget.cost.amount / budget.cost.per_device_hour * 3600, StopReason.COST))
    return min(caps, default=None)


def exhausted(budget: Budget, spent: Spent, reserve: Reserve) -> StopReason | None:
    """The first cap that running probes have reached, `reserve` kept back; the trial cap does not stop a probe."""
    if budget.full_runs is not None and spent.full_runs + reserve.full_runs >= budget.full_runs - 1e-9:
        return StopReason.FULL_RUNS
    if budget.seconds is not None and spent.seconds + reserve.seconds >= budget.seconds:
        return StopReason.SECONDS
    cap = device_seconds_cap(budget)
    if cap is not None and spent.device_seconds + reserve.device_seconds >= cap[0]:
        return cap[1]
    if budget.energy_kwh is not None:
        energy_j = spent.energy_j + spent.watts * reserve.device_seconds
        if energy_j >= budget.energy_kwh * JOULES_PER_KWH:
            return StopReason.ENERGY
    return None


def may_start(budget: Budget, spent: Spent, reserve: Reserve) -> StopReason | None:
    """Why no further trial may start, or None. `spent.trials` counts running trials too, and no lost ones."""
    if budget.trials is not None and spent.trials >= budget.trials:
        return StopReason.TRIALS
    return exhausted(budget, spent, reserve)
