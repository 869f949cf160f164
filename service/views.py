"""Rows to answers: how a job, a trial and a recipe look from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from service import schemas
from service.cron import Cron, CronError
from service.models import Job, Night, Point, Recipe, Schedule, Trial
from service.store import jobs, queue, runners, studies
from service.store.jobs import Tally
from service.store.runners import SeenRunner
from tuner.budget import JOULES_PER_KWH

JOB_COLUMNS = tuple(name for name in schemas.JobOut.model_fields if hasattr(Job, name))


def job_views(session: Session, rows: Sequence[Job], *, silence_s: float) -> list[schemas.JobOut]:
    """The jobs of one page, with a fixed number of queries."""
    begun = [job.id for job in rows if job.started_at is not None]
    tallies = jobs.tallies(session, begun)
    baselines = jobs.baselines(session, rows)
    study_ids = studies.ids(session, begun)
    is_open = any(job.state in jobs.OPEN_STATES for job in rows)
    seen = runners.seen(session, silence_s) if is_open else []
    nights = [job.id for job in rows if job.state == "queued" and job.schedule_id is not None]
    earlier = queue.earlier_runs(session, nights) if nights else {}
    waiting = {job.id: waiting_for(job, seen, earlier.get(job.id)) for job in rows}
    return [
        job_view(job, tallies.get(job.id, Tally()), baselines.get(job.id), study_ids.get(job.id), waiting[job.id])
        for job in rows
    ]


def job_view(
    job: Job,
    tally: Tally,
    baseline: tuple[int, float | None, str] | None,
    study_id: int | None,
    waiting: dict[str, str] | None,
) -> schemas.JobOut:
    done = tally.paused + sum(count for outcome, count in tally.outcomes.items() if outcome != "lost")
    best = None
    if job.best_trial is not None:
        best = schemas.TrialValue(trial=job.best_trial, value=job.best_value, value_kind="finite")
    return schemas.JobOut.model_validate(
        {
            **{name: getattr(job, name) for name in JOB_COLUMNS},
            "progress": {"done": done, "total": job.total},
            "outcomes": tally.outcomes,
            "baseline": _trial_value(baseline),
            "best": best,
            "spend": spend_of(job),
            "waiting_for": waiting,
            "study": {"name": job.id, "url": None if study_id is None else f"/dashboard/studies/{study_id}"},
        }
    )


def spend_of(job: Job) -> dict[str, Any]:
    """The job's receipt. `cost` is null unless the budget names a price."""
    price = ((job.resolved.get("budget") or {}).get("cost") or {}).get("per_device_hour")
    cost = None if price is None else job.device_seconds / 3600.0 * float(price)
    return {
        "device_seconds": job.device_seconds,
        "energy_kwh": job.energy_j / JOULES_PER_KWH if job.measured_runs else None,
        "energy_reason": _energy_reason(job),
        "cost": cost,
        "is_simulated": job.is_simulated,
    }


def _energy_reason(job: Job) -> str | None:
    """Why there is no energy, or what it leaves out; null when it is whole and real."""
    if not job.measured_runs:
        return job.energy_reason or "nothing_has_run"
    if job.unmeasured_runs:
        return f"without {job.unmeasured_runs} of {job.measured_runs + job.unmeasured_runs} runs: {job.energy_reason}"
    return "simulated" if job.is_simulated else None


def waiting_for(job: Job, seen: Sequence[SeenRunner], earlier: str | None) -> dict[str, str] | None:
    """Why nothing happens, when nothing does. `earlier` is the run of its schedule that has to end first."""
    live = [each.runner for each in seen if each.is_live]
    if job.state == "running" and not any(runner.id == job.lease_owner for runner in live):
        if job.lease_owner is None or live or seen:
            message = "The job's runner is not heard of; another takes over when its lease has expired."
        else:
            message = "The job's runner is gone: start one with `x5tune runner`."
        return {"code": "runner_lost", "message": message}
    if job.state != "queued":
        return None
    if not live:
        return {"code": "no_runner", "message": "No runner is connected: start one with `x5tune runner`."}
    if all(runner.state == "disk_full" for runner in live):
        hosts = ", ".join(sorted({runner.host for runner in live}))
        message = f"The disk of {hosts} is full: free some of it, or lower X5TUNE_MIN_FREE_MIB of the runner."
        return {"code": "disk_full", "message": message}
    if earlier is not None:
        message = f"The run of its schedule before it has not ended: job {earlier}."
        return {"code": "earlier_run", "message": message}
    if any(runner.state in ("starting", "idle") for runner in live):
        return {"code": "starting", "message": "A runner is about to take this job."}
    busy = [runner.job_id for runner in live if runner.job_id]
    what = f"busy with job {busy[0]}" if len(busy) == 1 else "busy with other jobs"
    who = "The runner is" if len(live) == 1 else "All runners are"
    return {"code": "runner_busy", "message": f"{who} {what}."}


def trial_view(trial: Trial, curve: Sequence[Point]) -> schemas.TrialOut:
    columns = {name: getattr(trial, name) for name in schemas.TrialOut.model_fields if name != "curve"}
    return schemas.TrialOut.model_validate({**columns, "curve": list(curve)})


def recipe_view(recipe: Recipe) -> schemas.RecipeOut:
    return schemas.RecipeOut.model_validate(recipe)


def schedule_view(schedule: Schedule, nights: Sequence[Night]) -> schemas.ScheduleOut:
    shown = {name: getattr(schedule, name) for name in schemas.ScheduleOut.model_fields if hasattr(schedule, name)}
    try:
        words = Cron(schedule.cron, schedule.timezone).words()
    except CronError:  # a zone that this machine does not know: its nights say so, and the list goes on
        words = schedule.cron
    return schemas.ScheduleOut.model_validate({**shown, "cron_words": words, "nights": list(nights)})


def runner_view(seen: SeenRunner) -> schemas.RunnerOut:
    view = schemas.RunnerOut.model_validate(seen.runner)
    return view if seen.is_live else view.model_copy(update={"state": "lost"})


def _trial_value(found: tuple[int, float | None, str] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"trial": found[0], "value": found[1], "value_kind": found[2]}
