"""What a job will take, worked out before it runs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from tuner.jobspec import ResolvedJob
from tuner.spec_space import space_size

_MANY = 1e12


@dataclass(frozen=True, slots=True)
class Estimate:
    """An upper bound: no trial is stopped early. None is unknown.

    `trials` are the search trials that fit into the budget after `confirmation_runs` are reserved, so at least so many
    are possible; `full_runs` is search and confirmation together, in runs to the full horizon. `cost` is in the
    currency of the budget's price.
    """

    trials: int | None
    confirmation_runs: int
    full_runs: float | None
    device_hours: float | None = None
    cost: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def estimate(job: ResolvedJob, seconds_per_full_run: float | None = None) -> Estimate:
    """The estimate for `job`; `seconds_per_full_run` is what earlier jobs measured, None without any.

    On the seconds axis a full run's time is known from the specification.
    """
    confirmation_runs = job.confirm.runs
    seconds = full_run_seconds(job, seconds_per_full_run)
    affordable = affordable_runs(job, seconds)
    caps = [cap for cap in (job.budget.trials, space_size(job.space)) if cap is not None]
    if affordable is not None:
        caps.append(max(0, math.floor(affordable) - confirmation_runs))
    trials = min(caps) if caps else None
    full_runs = None if trials is None else float(trials + confirmation_runs)
    if full_runs is not None and affordable is not None:
        full_runs = min(full_runs, affordable)
    device_hours = None
    if full_runs is not None and seconds is not None:
        device_hours = full_runs * seconds * devices(job) / 3600
    price = job.budget.cost.per_device_hour if job.budget.cost else None
    cost = None if price is None or device_hours is None else device_hours * price
    return Estimate(trials, confirmation_runs, full_runs, _finite(device_hours), _finite(cost))


def full_run_seconds(job: ResolvedJob, measured: float | None = None) -> float | None:
    """Seconds of one run to the full horizon, None when nobody knows."""
    return job.fidelity.max if job.fidelity.axis == "seconds" and job.fidelity.is_known else measured


def devices(job: ResolvedJob) -> float:
    """Devices that one trial occupies, all its processes together; a trial on the CPU alone occupies one.

    While `gpus: auto` is undecided it is a GPU for each process.
    """
    return float(job.resources.processes) if job.resources.gpus is None else job.resources.gpus or 1.0


def affordable_runs(job: ResolvedJob, seconds: float | None) -> float | None:
    """Full runs that the tightest cap other than `trials` pays for, one at a time; None when no such cap is known."""
    budget = job.budget
    caps = [] if budget.full_runs is None else [min(budget.full_runs, _MANY)]
    if seconds:
        hours = seconds * devices(job) / 3600
        if budget.seconds is not None:
            caps.append(_ratio(budget.seconds, seconds))
        if budget.device_hours is not None:
            caps.append(_ratio(budget.device_hours, hours))
        if budget.cost is not None:
            caps.append(_ratio(_ratio(budget.cost.amount, budget.cost.per_device_hour), hours))
    return min(caps) if caps else None


def _ratio(amount: float, unit: float) -> float:
    """`amount / unit`, where absurd numbers give a huge finite one instead of an overflow."""
    return min(amount / unit, _MANY) if unit > 0 else _MANY


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
