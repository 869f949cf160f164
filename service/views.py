"""Rows to answers: how a job, a trial and a recipe look from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from service import schemas
from service.answers import Row, Shape
from service.cron import Cron, CronError
from service.models import Confirmation, Frontier, Job, Night, Recipe, Schedule, Trace, Trial
from service.store import jobs, queue, runners, trials
from service.store.jobs import Tally
from service.store.runners import SeenRunner
from tuner.budget import JOULES_PER_KWH

JOB = Shape(schemas.JobOut, Job)
TRIAL = Shape(schemas.TrialOut, Trial)
RECIPE = Shape(schemas.RecipeOut, Recipe)
FRONTIER = Shape(schemas.FrontierOut, Frontier)
TRACE = Shape(schemas.TraceOut, Trace)
CONFIRMATION = Shape(schemas.ConfirmationOut, Confirmation)
_OF_JOB = Job.__table__.c  # not the attributes of the class: what is selected by those is loaded by the mapper's rules
_SPENT = ("device_seconds", "energy_j", "energy_reason", "measured_runs", "unmeasured_runs", "is_simulated")
_MORE = [_OF_JOB[name] for name in ("total", "best_trial", "best_value", "lease_owner", *_SPENT)]
PRICE = _OF_JOB.resolved[("budget", "cost", "per_device_hour")].as_float().label("price")
JOBS = jobs.shown([*JOB.columns, *_MORE, PRICE])


def job_text(session: Session, job_id: str, silence_s: float) -> str | None:
    """The job as JSON; None when there is none."""
    found = job_texts(session, [job_id], silence_s)
    return found[0] if found else None


def job_texts(session: Session, ids: Sequence[str], silence_s: float) -> list[str]:
    """These jobs as JSON, newest first, with a fixed number of queries."""
    rows = session.execute(JOBS, {"ids": ids}).all()
    tallies = jobs.tallies(session, [row.id for row in rows if row.started_at is not None])
    is_open = any(row.state in jobs.OPEN_STATES for row in rows)
    seen = runners.seen(session, silence_s) if is_open else []
    nights = [row.id for row in rows if row.state == "queued" and row.schedule_id is not None]
    earlier = queue.earlier_runs(session, nights) if nights else {}
    return [_job_text(row, tallies.get(row.id, Tally()), waiting_for(row, seen, earlier.get(row.id))) for row in rows]


def _job_text(row: Row, tally: Tally, waiting: dict[str, str] | None) -> str:
    done = tally.paused + sum(count for outcome, count in tally.outcomes.items() if outcome != "lost")
    url = None if row.study_id is None else f"/dashboard/studies/{row.study_id}"
    return JOB.text(
        row,
        progress={"done": done, "total": row.total},
        outcomes=tally.outcomes,
        baseline=_baseline(row),
        best=None if row.best_trial is None else _trial_value(row.best_trial, row.best_value, "finite"),
        spend=spend_of(row),
        waiting_for=waiting,
        study={"name": row.id, "url": url},
    )


def _baseline(row: Row) -> dict[str, Any] | None:
    """Only a baseline that ended well has a value to be compared with; what a stopped one said last is none."""
    if row.baseline_number is None:
        return None
    if row.baseline_outcome != "ok":
        return _trial_value(row.baseline_number, None, "missing")
    return _trial_value(row.baseline_number, row.baseline_value, row.baseline_kind)


def _trial_value(trial: int, value: float | None, kind: str) -> dict[str, Any]:
    return {"trial": trial, "value": value, "value_kind": kind}


def spend_of(job: Row) -> dict[str, Any]:
    """The job's receipt. `cost` is null unless the budget names a price."""
    cost = None if job.price is None else job.device_seconds / 3600.0 * job.price
    return {
        "device_seconds": job.device_seconds,
        "energy_kwh": job.energy_j / JOULES_PER_KWH if job.measured_runs else None,
        "energy_reason": _energy_reason(job),
        "cost": cost,
        "is_simulated": job.is_simulated,
    }


def _energy_reason(job: Row) -> str | None:
    """Why there is no energy, or what it leaves out; null when it is whole and real."""
    if not job.measured_runs:
        return job.energy_reason or "nothing_has_run"
    if job.unmeasured_runs:
        return f"without {job.unmeasured_runs} of {job.measured_runs + job.unmeasured_runs} runs: {job.energy_reason}"
    return "simulated" if job.is_simulated else None


def waiting_for(job: Row, seen: Sequence[SeenRunner], earlier: str | None) -> dict[str, str] | None:
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


def trial_texts(session: Session, job_id: str, rows: Sequence[Row]) -> list[str]:
    """Trials of a job as JSON, with their curves."""
    curves = trials.curves(session, job_id, [row.number for row in rows])
    return [TRIAL.text(row, curve=curves[row.number]) for row in rows]


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
