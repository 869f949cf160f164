"""What a job's budget comes to, before anything of it has run; pure."""

from __future__ import annotations

from tuner.budget import device_seconds_cap
from tuner.jobspec import OWN_SEARCH, Budget, ResolvedJob, Resources
from workloads.catalog import manifest
from workloads.contract import Fidelity
from workloads.horizon import Horizon
from workloads.rates import MIN_RATES

BY_ITSELF = 0.8
"""Of the seconds that a run aside may take, after how many it ends by itself; after all of them it is ended."""
OF_A_RUN = 0.4
"""What a trial takes of a full run at least on average where the search pauses or prunes; else it is all of it."""


def full_runs(job: ResolvedJob) -> float:
    """The full runs that the search will take at least; without a cap that says it, as many as rates are tested."""
    budget = job.budget
    each = OF_A_RUN if job.sampler == OWN_SEARCH or job.pruner != "none" else 1.0
    caps = [budget.full_runs, None if budget.trials is None else each * budget.trials]
    return min((cap for cap in caps if cap is not None), default=float(MIN_RATES))


def full_steps(job: ResolvedJob) -> int | None:
    """The steps of a full run of the baseline; None where only the run itself can tell."""
    fidelity, batch_size = job.fidelity, job.baseline.get("batch_size")
    tokens = manifest(job.workload).tokens_per_sample if job.code is None else None
    if fidelity.axis == "seconds" or batch_size is None or (fidelity.axis == "tokens" and tokens is None):
        return None
    return Horizon.of(Fidelity(fidelity.axis, fidelity.max, fidelity.reports), int(batch_size), tokens).steps


def given_s(budget: Budget, resources: Resources) -> float | None:
    """The seconds of one slot that are given in time or money; None where nothing is."""
    device_seconds = device_seconds_cap(budget)
    in_devices = None if device_seconds is None else device_seconds[0] / (resources.gpus or 1.0)
    return min((cap for cap in (budget.seconds, in_devices) if cap is not None), default=None)


def share_s(job: ResolvedJob, share: float) -> float | None:
    """The seconds that are this share of what is given in time or money, or by the length of runs; None: nothing is."""
    runs_s = full_runs(job) * job.fidelity.max if job.fidelity.axis == "seconds" else None
    caps = (given_s(job.budget, job.resources), runs_s)
    return min((share * cap for cap in caps if cap is not None), default=None)


def allowance(job: ResolvedJob, share: float) -> dict[str, float | None]:
    """What short runs are told to take, which is less than this share of the budget: full `runs`, and `seconds`."""
    seconds = share_s(job, share)
    return {"runs": share * full_runs(job), "seconds": None if seconds is None else BY_ITSELF * seconds}
