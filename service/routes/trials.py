"""The trials of a job, with their curves, and its confirmation runs."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy.orm import Session

from service import paging, schemas, views
from service.auth import CanRead
from service.context import Db, require_id
from service.errors import not_found
from service.models import Trial
from service.store import jobs, trials

router = APIRouter(prefix="/jobs/{job_id}", tags=["trials"], dependencies=[CanRead])


@router.get("/trials", response_model=schemas.Page[schemas.TrialOut])
def list_trials(
    job_id: str, db: Db, cursor: paging.Cursor = None, limit: paging.Limit = 50
) -> schemas.Page[schemas.TrialOut]:
    """Trials by number."""
    after = paging.number_cursor(cursor)
    with db.read() as session:
        require_job(session, job_id)
        rows = trials.page(session, job_id, after=after, limit=limit + 1)
        page, following = paging.split(rows, limit, lambda trial: trial.number)
        curves = trials.curves(session, job_id, [trial.number for trial in page])
    items = [views.trial_view(trial, curves[trial.number]) for trial in page]
    return schemas.Page[schemas.TrialOut](items=items, next=following)


@router.get("/trials/{number}", response_model=schemas.TrialOut)
def show_trial(job_id: str, number: str, db: Db) -> schemas.TrialOut:
    with db.read() as session:
        trial = _require_trial(session, job_id, number)
        curve = trials.curves(session, job_id, [trial.number])[trial.number]
    return views.trial_view(trial, curve)


@router.get("/trials/{number}/telemetry", response_model=schemas.Page[schemas.TraceOut])
def list_traces(job_id: str, number: str, db: Db) -> schemas.Page[schemas.TraceOut]:
    """What the hardware did while a trial ran, a trace for each of its probes that has ended; always one page."""
    with db.read() as session:
        rows = trials.traces(session, job_id, _require_trial(session, job_id, number).number)
    return schemas.Page[schemas.TraceOut](items=[schemas.TraceOut.model_validate(row) for row in rows], next=None)


@router.get("/confirmations", response_model=schemas.Page[schemas.ConfirmationOut])
def list_confirmations(job_id: str, db: Db) -> schemas.Page[schemas.ConfirmationOut]:
    """The confirmation runs, in the order in which they ended; always one page."""
    with db.read() as session:
        require_job(session, job_id)
        rows = trials.confirmations(session, job_id)
    items = [schemas.ConfirmationOut.model_validate(row) for row in rows]
    return schemas.Page[schemas.ConfirmationOut](items=items, next=None)


def _require_trial(session: Session, job_id: str, number: str) -> Trial:
    require_job(session, job_id)
    is_number = number.isascii() and number.isdecimal() and len(number) < 16
    trial = trials.get(session, job_id, int(number)) if is_number else None
    if trial is None:
        raise not_found("trial", number)
    return trial


def require_job(session: Session, job_id: str) -> None:
    """Raise a 404 unless there is such a job."""
    if not jobs.exists(session, require_id("job", job_id)):
        raise not_found("job", job_id)
