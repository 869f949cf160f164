"""What has to hold of every job after the faults, read straight from SQL: nothing lost, nothing counted twice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.orm import Session

from service.database import Database
from service.models import Confirmation, Event, Job, Point, Trial
from tuner.confirm_plan import EXTENDED_SEEDS
from tuner.jobspec import ResolvedJob
from tuner.search import open_storage, quiet_optuna

POISONED = "was lost"


@dataclass(frozen=True)
class JobFacts:
    """Everything that the database says about one job."""

    job: Job
    resolved: ResolvedJob
    trials: Sequence[Trial]
    points: Sequence[Point]
    confirmations: Sequence[Confirmation]
    events: Sequence[Event]
    study: Sequence[FrozenTrial]
    finalists: Sequence[int]

    @property
    def counted(self) -> list[Trial]:
        """The trials that count against the budget."""
        return [trial for trial in self.trials if trial.outcome != "lost"]


def violations(database: Database) -> Mapping[str, list[str]]:
    """What is wrong, by job; jobs that are all right are left out."""
    storage = open_storage(database.url)
    try:
        with database.read() as session:
            jobs = session.scalars(sa.select(Job).order_by(Job.id)).all()
            found = {job.id: list(wrong_with(facts(session, job, storage))) for job in jobs}
    finally:
        storage.remove_session()
        storage.engine.dispose()
    return {job_id: wrong for job_id, wrong in found.items() if wrong}


def facts(session: Session, job: Job, storage: optuna.storages.RDBStorage) -> JobFacts:
    def rows(model: Any, *order: Any) -> Any:
        return session.scalars(sa.select(model).where(model.job_id == job.id).order_by(*order)).all()

    with quiet_optuna():
        try:
            known = optuna.load_study(study_name=job.id, storage=storage)
            study, chosen = known.get_trials(deepcopy=False), known.user_attrs.get("finalists", [])
        except KeyError:
            study, chosen = [], []  # it never began
    return JobFacts(
        job,
        ResolvedJob.from_json(job.resolved),
        rows(Trial, Trial.number),
        rows(Point, Point.number, Point.index),
        rows(Confirmation, Confirmation.trial, Confirmation.seed),
        rows(Event, Event.seq),
        study,
        [one["number"] for one in chosen],
    )


def wrong_with(it: JobFacts) -> Iterator[str]:
    yield from wrong_with_end(it)
    yield from wrong_with_events(it)
    if it.job.state == "failed":
        return
    yield from wrong_with_budget(it)
    yield from wrong_with_study(it)
    yield from wrong_with_retries(it)
    yield from wrong_with_reports(it)
    yield from wrong_with_confirmations(it)
    yield from wrong_with_sums(it)


def wrong_with_end(it: JobFacts) -> Iterator[str]:
    job = it.job
    if job.state == "failed":
        is_said = POISONED in (job.error or "")
        yield f"failed {'as poison' if is_said else 'without reason'}: {job.stop_reason}: {job.error}"
    elif job.state != "succeeded":
        yield f"did not end: {job.state}, phase {job.phase}, attempt {job.attempt}"
    elif job.stop_reason != "trials":
        yield f"ended by {job.stop_reason}, not by its trials"
    if job.lease_owner is not None or job.lease_expires_at is not None:
        yield "somebody still holds its lease"


def wrong_with_events(it: JobFacts) -> Iterator[str]:
    if [event.seq for event in it.events] != list(range(1, it.job.last_event + 1)):
        yield f"events are not numbered 1 to {it.job.last_event} without gaps"
    if sum(event.type == "end" for event in it.events) != 1:
        yield "there is not exactly one end event"
    told: Counter[tuple[Any, ...]] = Counter()
    for event in it.events:
        data = event.data
        if event.type == "report":
            told["report", data["trial"], data["index"]] += 1
        elif event.type == "trial" and data.get("confirmation"):
            told["confirmation", data["trial"], data["seed"]] += 1
        elif event.type == "trial" and data["state"] == "ended":
            told["trial", data["number"], data["state"]] += 1
    for what, times in told.items():
        if times > 1:
            yield f"event {what} was told {times} times"


def wrong_with_budget(it: JobFacts) -> Iterator[str]:
    budget = it.resolved.budget.trials
    if len(it.counted) != budget:
        yield f"{len(it.counted)} trials count against a budget of {budget}"
    baselines = [trial.number for trial in it.counted if trial.is_baseline]
    if len(baselines) != 1:
        yield f"the baseline was tried {len(baselines)} times"


def wrong_with_study(it: JobFacts) -> Iterator[str]:
    ours = {trial.number: trial for trial in it.trials}
    for trial in it.study:
        if not trial.state.is_finished():
            yield f"trial {trial.number} is {trial.state.name} in the study"
        elif trial.number not in ours:
            yield f"trial {trial.number} is only in the study"
    for missing in ours.keys() - {trial.number for trial in it.study}:
        yield f"trial {missing} is not in the study"
    for trial in it.study:
        row = ours.get(trial.number)
        if row is None or not trial.state.is_finished():
            continue
        if row.state != "ended":
            yield f"trial {row.number} is {row.state}"
        outcome = trial.user_attrs.get("end", {}).get("outcome")
        if outcome != row.outcome:
            yield f"trial {row.number} is {row.outcome} here and {outcome} in the study"
        if (row.outcome == "ok") != (trial.state == TrialState.COMPLETE):
            yield f"trial {row.number} is {row.outcome} here and {trial.state.name} in the study"


def wrong_with_retries(it: JobFacts) -> Iterator[str]:
    ours = {trial.number: trial for trial in it.trials}
    retried: Counter[int] = Counter(trial.retry_of for trial in it.trials if trial.retry_of is not None)
    for trial in it.trials:
        if trial.outcome != "lost":
            if retried[trial.number]:
                yield f"trial {trial.number} was not lost and yet retried"
        elif retried[trial.number] != 1 and (trial.retry_of is None or trial.is_baseline) and trial.parameters:
            yield f"the lost trial {trial.number} was retried {retried[trial.number]} times"
    for trial in it.trials:
        first = ours.get(trial.retry_of) if trial.retry_of is not None else None
        if first is not None and (first.parameters, first.is_baseline) != (trial.parameters, trial.is_baseline):
            yield f"trial {trial.number} retries {first.number} with other parameters"


def wrong_with_reports(it: JobFacts) -> Iterator[str]:
    fidelity = it.resolved.fidelity
    for trial in it.trials:
        indexes = [point.index for point in it.points if point.number == trial.number]
        has_all = indexes == list(range(1, fidelity.reports + 1))
        if fidelity.max / trial.parameters.get("batch_size", 1) < fidelity.reports:  # fewer steps than reports
            has_all = indexes[-1:] == [fidelity.reports]
        if trial.outcome == "ok" and not has_all:
            yield f"trial {trial.number} is ok with reports {indexes}"


def wrong_with_confirmations(it: JobFacts) -> Iterator[str]:
    runs, confirm = it.confirmations, it.resolved.confirm
    if not it.finalists:
        if runs:
            yield "there was nothing to confirm, and yet there are runs"
        return
    wanted = {trial.number for trial in it.counted if trial.is_baseline} | {*it.finalists}
    done = {(run.trial, run.seed) for run in runs}
    seeds = {seed for _, seed in done}
    if done != {(trial, seed) for trial in wanted for seed in seeds}:
        yield f"confirmed {sorted(done)}, wanted trials {sorted(wanted)}"
    if len(seeds) not in (confirm.seeds, EXTENDED_SEEDS):
        yield f"{len(seeds)} seeds instead of {confirm.seeds} or {EXTENDED_SEEDS}"
    lost = [(run.trial, run.seed) for run in runs if run.outcome == "lost"]
    if lost:
        yield f"confirmation runs {lost} count as lost"


def wrong_with_sums(it: JobFacts) -> Iterator[str]:
    best = min((trial.value for trial in it.trials if trial.outcome == "ok" and trial.value is not None), default=None)
    if it.job.best_value != best:
        yield f"the best value is {best}, not {it.job.best_value}"
    seconds = sum(probe["device_seconds"] for trial in it.trials for probe in trial.probes)
    seconds += sum(run.probe["device_seconds"] for run in it.confirmations if run.probe)
    seconds += sum((phase or {}).get("device_seconds", 0.0) for phase in (it.job.fit, it.job.range_test))
    seconds += sum(event.data.get("device_seconds", 0.0) for event in it.events if event.type == "log")
    if not math.isclose(seconds, it.job.device_seconds, abs_tol=0.01):
        yield f"device seconds add up to {seconds:.3f}, not {it.job.device_seconds:.3f}"


def claims(session: Session) -> list[tuple[str, datetime, datetime]]:
    """Every claim of a job that had run before: the job, the time of its event before that, and the claim's."""
    found = []
    last: dict[str, datetime] = {}
    for event in session.scalars(sa.select(Event).order_by(Event.job_id, Event.seq)):
        if event.type == "state" and event.data.get("state") == "running" and event.data.get("attempt", 1) > 1:
            found.append((event.job_id, last[event.job_id], event.time))
        last[event.job_id] = event.time
    return found
