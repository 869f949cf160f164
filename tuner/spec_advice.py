"""What is odd about a job that can run: a budget too small for its confirmation, a space smaller than its trials."""

from __future__ import annotations

from tuner.estimate import Estimate, affordable_runs, full_run_seconds
from tuner.jobspec import ResolvedJob
from tuner.spec_class import is_class
from tuner.spec_numbers import plain
from tuner.spec_problems import Notes
from tuner.spec_space import space_size


def advise(notes: Notes, job: ResolvedJob, expected: Estimate, seconds_per_full_run: float | None = None) -> None:
    """Add the warnings that follow from the job as a whole."""
    size = space_size(job.space)
    if not job.searched:
        notes.warn("search", "Every parameter is fixed, so there is one configuration and nothing to search.")
    elif size is not None and (job.budget.trials is None or size < job.budget.trials):
        trials = "" if job.budget.trials is None else f" for {job.budget.trials} trials"
        few = "is only 1 configuration" if size == 1 else f"are only {size} configurations"
        notes.warn("search", f"There {few}{trials}; the search ends when all were tried.")
    affordable = affordable_runs(job, full_run_seconds(job, seconds_per_full_run))
    needed = expected.confirmation_runs
    if affordable is not None and affordable < needed + 1:
        pays = f"the budget pays for about {plain(int(affordable))}" if affordable >= 1 else "the budget pays for less"
        sides = f"{job.confirm.top} finalists and the baseline on {job.confirm.seeds} seeds"
        need = f"Confirmation needs {needed} full runs ({sides})" if needed else "One trial needs 1 full run"
        remedy = "raise the budget, or lower confirm.top or confirm.seeds" if needed else "raise the budget"
        notes.warn("budget", f"{need} and {pays}, which leaves nothing to search with; {remedy}.")
    if not job.fidelity.is_known:
        message = "It is not given, so the first run, alone and to its own end, shows how long a full run is"
        notes.warn("fidelity.max", f"{message}; until then nobody knows what the job will take.")
    _advise_on_loss_scale(notes, job)
    if job.pruner != "none" and job.fidelity.reports < 2:
        notes.warn("pruner", f"{job.pruner} stops nothing with 1 report a trial; raise fidelity.reports.")


def _advise_on_loss_scale(notes: Notes, job: ResolvedJob) -> None:
    """A loss scale changes nothing without fp16; searching it then spends trials on noise.

    A user's own loop decides by itself what it trains in, so nothing is said of it.
    """
    owns_loop = job.code is None or is_class(job.code)
    if not owns_loop or "loss_scale" not in job.searched or job.precision == "fp16":
        return
    if job.precision == "auto":
        message = (
            "has an effect with fp16 only, which auto chooses on older GPUs alone; set precision: fp16 to search it."
        )
    else:
        message = f"has no effect with {job.precision}; set precision: fp16, or leave it out of search."
    notes.warn("search.loss_scale", message)
