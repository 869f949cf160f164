"""The trials of a job, with their curves, and its confirmation runs."""

from __future__ import annotations

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from service import answers, paging, schemas, views
from service.auth import CanRead
from service.context import Db, require_id
from service.errors import not_found
from service.store import jobs, trials

router = APIRouter(prefix="/jobs/{job_id}", tags=["trials"], dependencies=[CanRead])


@router.get("/trials", response_model=schemas.Page[schemas.TrialOut])
def list_trials(job_id: str, db: Db, cursor: paging.Cursor = None, limit: paging.Limit = 50) -> Response:
    """Trials by number."""
    after = paging.number_cursor(cursor)
    with db.read() as session:
        require_job(session, job_id)
        found = views.TRIAL.rows(session, trials.page(job_id, after=after, limit=limit + 1))
        rows, following = paging.split(found, limit, lambda trial: trial.number)
        return answers.page(views.trial_texts(session, job_id, rows), following)


@router.get("/trials/{number}", response_model=schemas.TrialOut)
def show_trial(job_id: str, number: str, db: Db) -> Response:
    with db.read() as session:
        trial = _require_trial(session, job_id, number)
        return answers.one(views.trial_texts(session, job_id, [trial])[0])


@router.get("/trials/{number}/telemetry", response_model=schemas.Page[schemas.TraceOut])
def list_traces(job_id: str, number: str, db: Db) -> Response:
    """What the hardware did while a trial ran, a trace for each of its probes that has ended; always one page."""
    with db.read() as session:
        trial = _require_trial(session, job_id, number)
        rows = views.TRACE.rows(session, trials.traces(job_id, trial.number))
    return answers.page(map(views.TRACE.text, rows))


@router.get("/confirmations", response_model=schemas.Page[schemas.ConfirmationOut])
def list_confirmations(job_id: str, db: Db) -> Response:
    """The confirmation runs, in the order in which they ended; always one page."""
    with db.read() as session:
        require_job(session, job_id)
        rows = views.CONFIRMATION.rows(session, trials.confirmations(job_id))
    return answers.page(map(views.CONFIRMATION.text, rows))


def _require_trial(session: Session, job_id: str, number: str) -> answers.Row:
    require_job(session, job_id)
    is_number = number.isascii() and number.isdecimal() and len(number) < 16
    rows = views.TRIAL.rows(session, trials.one(job_id, int(number))) if is_number else []
    if not rows:
        raise not_found("trial", number)
    return rows[0]


def require_job(session: Session, job_id: str) -> None:
    """Raise a 404 unless there is such a job."""
    if not jobs.exists(session, require_id("job", job_id)):
        raise not_found("job", job_id)
