"""Earlier jobs and their trials, as `tuner.earlier_jobs` reads them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Confirmation, Job, Point, Trial
from service.store.jobs import ENDED_STATES
from tuner.earlier_jobs import MOST_TRIALS, EarlierJob, EarlierTrial, most_similar
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome

log = logging.getLogger("x5tune.history")

LOOKED_AT = 200
"""Ended jobs that are compared: of the same workload first, then the newest."""


def earlier(session: Session, job: Job, resolved: ResolvedJob) -> list[EarlierJob]:
    """The jobs that this one learns from, with their trials; the same ones as an earlier attempt at it has chosen."""
    if job.learnt_from is not None:
        chosen = [told["job"] for told in job.learnt_from]
        found = {row.id: row for row in session.scalars(sa.select(Job).where(Job.id.in_(chosen)))}
        known = {key: ResolvedJob.from_json(found[key].resolved) for key in chosen if key in found}
        return [_read(session, key, one) for key, one in known.items()]
    query = (
        sa.select(Job)
        .where(Job.id != job.id, Job.state.in_(ENDED_STATES))
        .order_by(sa.case((Job.workload == job.workload, 0), else_=1), Job.id.desc())
        .limit(LOOKED_AT)
    )
    others: dict[str, ResolvedJob] = {}
    for row in session.scalars(query):
        try:
            others[row.id] = ResolvedJob.from_json(row.resolved)
        except (KeyError, TypeError, ValueError):  # written by a version with other ideas
            log.warning("job %s cannot be learnt from: its specification is of another version", row.id)
    if job.parent_id in others:  # a fork starts from its parent
        others = {job.parent_id: others[job.parent_id]} | others
    return [_read(session, key, others[key]) for key in most_similar(resolved, others)]


def _read(session: Session, job_id: str, resolved: ResolvedJob) -> EarlierJob:
    query = (
        sa.select(Trial.number, Trial.parameters, Trial.outcome)
        .where(Trial.job_id == job_id, Trial.state == "ended", Trial.outcome.is_not(None))
        .order_by(Trial.number.desc())
        .limit(MOST_TRIALS)
    )
    rows = sorted(session.execute(query).all())
    curves = _curves(session, job_id, [row.number for row in rows], resolved.fidelity.reports)
    trials = [EarlierTrial(row.parameters, Outcome(row.outcome), curves.get(row.number, [])) for row in rows]
    return EarlierJob(job_id, resolved, trials, _confirmed(session, job_id))


def _confirmed(session: Session, job_id: str) -> list[list[float]]:
    """The results of the confirmation runs, by configuration."""
    found: dict[int, list[float]] = {}
    query = sa.select(Confirmation.trial, Confirmation.value).where(Confirmation.job_id == job_id)
    for row in session.execute(query.order_by(Confirmation.trial, Confirmation.seed)):
        if row.value is not None:
            found.setdefault(row.trial, []).append(row.value)
    return list(found.values())


def _curves(
    session: Session, job_id: str, numbers: Sequence[int], reports: int
) -> dict[int, list[tuple[float, float | None]]]:
    query = (
        sa.select(Point.number, Point.index.label("report"), Point.value)
        .where(Point.job_id == job_id, Point.number.in_(numbers))
        .order_by(Point.number, Point.index)
    )
    found: dict[int, list[tuple[float, float | None]]] = {}
    for row in session.execute(query):
        found.setdefault(row.number, []).append((row.report / reports, row.value))
    return found
