"""Jobs: submit, list, look at, cancel, delete."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Header, Query, Response
from sqlalchemy.orm import Session

from service import answers, paging, schemas, snapshots, views
from service.allowed import require_room, within_roots
from service.auth import Asker, CanRead, CanSubmit
from service.body import Raw
from service.context import Config, Db, require_id, storable
from service.database import Database
from service.errors import FieldError, conflict, invalid, not_found
from service.forking import changed
from service.ids import new_id
from service.models import Job
from service.settings import Settings
from service.store import jobs, recipes, studies
from service.store.tokens import Principal
from service.submission import read_spec, understand
from service.submitting import copied, create_job, require_secret
from tuner.spec import MAX_NAME_CHARS

router = APIRouter(prefix="/jobs", tags=["jobs"])


def _body(description: str, *, is_required: bool) -> dict[str, Any]:
    content = {media_type: {"schema": {"type": "object"}} for media_type in ("application/json", "application/yaml")}
    return {"requestBody": {"required": is_required, "description": description, "content": content}}


_SPEC_BODY = _body("A job specification.", is_required=True)
_CHANGES_BODY = _body("What is to be different.", is_required=False)


@router.post(
    "",
    status_code=201,
    response_model=schemas.JobOut,
    responses={200: {"model": schemas.JobOut | schemas.DryRun, "description": "A retry's first job, or a dry run."}},
    openapi_extra=_SPEC_BODY,
    dependencies=[CanSubmit],
)
def submit(
    *,
    body: Raw,
    db: Db,
    settings: Config,
    asker: Asker,
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """Submit a job. With `Idempotency-Key` a retry returns the first job; `?dry_run=true` only validates."""
    return _accept(db, settings, read_spec(body), asker, dry_run=dry_run, key=idempotency_key)


@router.post(
    "/{job_id}/fork",
    status_code=201,
    response_model=schemas.JobOut,
    responses={200: {"model": schemas.JobOut | schemas.DryRun, "description": "A retry's first job, or a dry run."}},
    openapi_extra=_CHANGES_BODY,
    dependencies=[CanSubmit],
)
def fork(
    *,
    job_id: str,
    body: Raw,
    db: Db,
    settings: Config,
    asker: Asker,
    dry_run: bool = False,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=255)] = None,
) -> Response:
    """A new job from this one's specification with changes merged in (null takes a key out); it learns from this one.

    No body: the same again.
    """
    with db.read() as session:
        parent = jobs.get(session, require_id("job", job_id))
    if parent is None:
        raise not_found("job", job_id)
    spec = changed(parent.spec, read_spec(body) if body.content.strip() else {})
    return _accept(db, settings, spec, asker, dry_run=dry_run, key=idempotency_key, parent_id=parent.id)


def _accept(
    db: Database,
    settings: Settings,
    spec: dict[str, Any],
    asker: Principal,
    *,
    dry_run: bool,
    key: str | None,
    parent_id: str | None = None,
) -> Response:
    if not dry_run and key is not None:
        earlier = _earlier(db, settings, key, spec)
        if earlier is not None:
            return answers.one(earlier)
    submission = within_roots(settings, understand(spec))
    require_secret(settings, submission.webhook)
    if dry_run and submission.snapshot_of is not None:
        snapshots.check(submission.snapshot_of, settings.snapshot_mib << 20, settings.home)
    if dry_run:
        shown = {name: getattr(submission, name) for name in ("spec", "resolved", "estimate", "warnings")}
        return answers.one(schemas.DryRun.model_validate(shown).model_dump_json())
    job_id = new_id()
    try:
        with copied(settings, submission, job_id) as whole, db.write() as session:
            require_room(session, settings, asker.token_id)
            create_job(session, whole, job_id, idempotency_key=key, parent_id=parent_id, token_id=asker.token_id)
            job = _text(session, settings, job_id)
    except sa.exc.IntegrityError:
        # Two requests with one key at the same time: the other one was first.
        earlier = _earlier(db, settings, key or "", spec)
        if earlier is None:
            raise
        return answers.one(earlier)
    return answers.one(job, 201, {"Location": f"/v1/jobs/{job_id}"})


@router.get("", response_model=schemas.Page[schemas.JobOut], dependencies=[CanRead])
def list_jobs(
    *,
    db: Db,
    settings: Config,
    state: Annotated[list[str] | None, Query(description="One state, several, or several separated by commas.")] = None,
    workload: str | None = None,
    q: Annotated[str | None, Query(description="Text in the name.", max_length=MAX_NAME_CHARS)] = None,
    id_prefix: Annotated[str | None, Query(description="How the id starts.", max_length=36)] = None,
    cursor: paging.Cursor = None,
    limit: paging.Limit = 50,
) -> Response:
    """Jobs, newest first."""
    before = paging.id_cursor(cursor)
    with db.read() as session:
        found = jobs.search(
            session,
            states=_states(state),
            workload=storable("workload", workload),
            text=storable("q", q),
            id_prefix=storable("id_prefix", id_prefix and id_prefix.lower()),
            before=before,
            limit=limit + 1,
        )
        ids, following = paging.split(found, limit, lambda job_id: job_id)
        return answers.page(views.job_texts(session, ids, settings.lease_s), following)


@router.get("/{job_id}", response_model=schemas.JobOut, dependencies=[CanRead])
def show(job_id: str, db: Db, settings: Config) -> Response:
    with db.read() as session:
        return answers.one(_text(session, settings, require_id("job", job_id)))


@router.post("/{job_id}/cancel", response_model=schemas.JobOut, dependencies=[CanSubmit])
def cancel(job_id: str, db: Db, settings: Config) -> Response:
    """A queued job never starts; a running one winds down and keeps its recipes; an ended one is left as it is."""
    require_id("job", job_id)
    with db.write() as session:
        job = jobs.get(session, job_id, lock=True)
        if job is None:
            raise not_found("job", job_id)
        jobs.request_cancel(session, job)
    return show(job_id, db, settings)


@router.delete("/{job_id}", status_code=204, response_class=Response, dependencies=[CanSubmit])
def delete(
    job_id: str,
    db: Db,
    settings: Config,
    recipes_too: Annotated[bool, Query(alias="recipes", description="Its recipes too.")] = False,
) -> None:
    """Delete an ended job with its study; its recipes stay unless `?recipes=true`."""
    require_id("job", job_id)
    with db.read() as session:
        _require_ended(jobs.get(session, job_id), job_id)
        has_study = studies.exists(session, job_id)
    if has_study:
        # Before the job, in Optuna's own transaction: if we die in between, deleting again finishes it.
        studies.delete(db.url, job_id)
    with db.write() as session:
        _require_ended(jobs.get(session, job_id, lock=True), job_id)
        if recipes_too:
            recipes.delete_of_job(session, job_id)
        jobs.delete(session, job_id)
    snapshots.remove(settings.snapshots / job_id)


def _require_ended(job: Job | None, job_id: str) -> None:
    if job is None:
        raise not_found("job", job_id)
    if job.state not in jobs.ENDED_STATES:
        raise conflict(f"Job {job_id} is {job.state}; cancel it first.")


def _earlier(db: Database, settings: Settings, key: str, spec: dict[str, Any]) -> str | None:
    with db.read() as session:
        job = jobs.by_idempotency_key(session, key)
        if job is None:
            return None
        if job.spec != spec:
            raise conflict(f"The idempotency key {key!r} was used for another specification (job {job.id}).")
        return _text(session, settings, job.id)


def _text(session: Session, settings: Settings, job_id: str) -> str:
    text = views.job_text(session, job_id, settings.lease_s)
    if text is None:
        raise not_found("job", job_id)
    return text


def _states(given: list[str] | None) -> list[str]:
    wanted = [word.strip() for text in given or () for word in text.split(",") if word.strip()]
    for word in wanted:
        if word not in jobs.STATES:
            raise invalid([FieldError("state", word, f"not a state; there are {', '.join(jobs.STATES)}")])
    return wanted
