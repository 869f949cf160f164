"""Schedules: nightly sweeps, their rules, and what came of their nights."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError
from sqlalchemy.orm import Session

from service import answers, paging, schemas, snapshots, views
from service.allowed import within_roots
from service.auth import Asker, CanRead, CanSubmit
from service.body import JSON_TYPES, YAML_TYPES, Raw, RawBody, parse_json
from service.context import Config, Db, require_id
from service.cron import Cron, CronError
from service.errors import FieldError, ProblemError, invalid, not_found
from service.fields import Moment, Name
from service.models import Schedule
from service.scheduler import Scheduler
from service.settings import Settings
from service.store import schedules
from service.submission import read_spec, understand
from service.submitting import require_secret
from service.validation import validated
from tuner.spec_webhook import url_problem

router = APIRouter(prefix="/schedules", tags=["schedules"])


def _webhook(url: str | None) -> str | None:
    problem = None if url is None else url_problem(url)
    if problem:
        raise PydanticCustomError("webhook", "{problem}", {"problem": problem})
    return url


class _Rules(BaseModel):
    """What a schedule is made of, without its specification."""

    model_config = ConfigDict(extra="forbid")

    name: Name
    cron: Annotated[str, Field(min_length=1, max_length=255)]
    timezone: Annotated[str, Field(min_length=1, max_length=64)] = "UTC"
    overlap: Literal["skip", "queue", "replace"] = "skip"
    missed: Literal["once", "skip"] = "once"
    ends_at: Moment | None = None
    webhook: Annotated[str | None, AfterValidator(_webhook)] = None
    spec: dict[str, Any]


class _Changes(BaseModel):
    """Any of them; `state` pauses and resumes."""

    model_config = ConfigDict(extra="forbid")

    name: Name | None = None
    cron: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    timezone: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    overlap: Literal["skip", "queue", "replace"] | None = None
    missed: Literal["once", "skip"] | None = None
    ends_at: Moment | None = None
    webhook: Annotated[str | None, AfterValidator(_webhook)] = None
    spec: dict[str, Any] | None = None
    state: Literal["active", "paused"] | None = None


def _body(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    return {
        "requestBody": {
            "required": True,
            "content": {JSON_TYPES[0]: {"schema": schema}, YAML_TYPES[0]: {"schema": schema}},
        }
    }


@router.post(
    "",
    status_code=201,
    response_model=schemas.ScheduleOut,
    openapi_extra=_body(_Rules),
    dependencies=[CanSubmit],
)
def create(body: Raw, db: Db, settings: Config, response: Response) -> schemas.ScheduleOut:
    """Submit a job at every due time. The specification is checked now as a submitted one is."""
    wanted = validated(_Rules, _content(body))
    cron = _cron(wanted.cron, wanted.timezone)
    _check_spec(settings, wanted.spec)
    require_secret(settings, wanted.webhook)
    with db.write() as session:
        now = schedules.clock(session)
        following = _next(cron, now, wanted.ends_at)
        if following is None:
            raise invalid([FieldError("ends_at", str(wanted.ends_at), "is before the first due time")])
        schedule = Schedule(**wanted.model_dump(), next_at=following)
        session.add(schedule)
        session.flush()
        session.refresh(schedule)
        view = views.schedule_view(schedule, [])
    response.headers["Location"] = f"/v1/schedules/{view.id}"
    return view


@router.get("", response_model=schemas.Page[schemas.ScheduleOut], dependencies=[CanRead])
def list_schedules(db: Db, cursor: paging.Cursor = None, limit: paging.Limit = 50) -> schemas.Page[schemas.ScheduleOut]:
    """Newest first, each with its last night."""
    before = paging.id_cursor(cursor)
    with db.read() as session:
        page, following = paging.split(
            schedules.page(session, before=before, limit=limit + 1), limit, lambda schedule: schedule.id
        )
        items = [views.schedule_view(each, schedules.nights(session, each.id, limit=1)) for each in page]
    return schemas.Page[schemas.ScheduleOut](items=items, next=following)


@router.get("/{schedule_id}", response_model=schemas.ScheduleOut, dependencies=[CanRead])
def show(schedule_id: str, db: Db) -> schemas.ScheduleOut:
    """A schedule with its nights, the last hundred, newest first."""
    with db.read() as session:
        schedule = _require(session, schedule_id)
        return views.schedule_view(schedule, schedules.nights(session, schedule.id))


@router.patch(
    "/{schedule_id}", response_model=schemas.ScheduleOut, openapi_extra=_body(_Changes), dependencies=[CanSubmit]
)
def change(schedule_id: str, body: Raw, db: Db, settings: Config) -> schemas.ScheduleOut:
    """Change what is given and leave the rest. Resuming waits for the next due time; what was missed stays missed."""
    content = _content(body)
    wanted = validated(_Changes, content)
    given = {name: getattr(wanted, name) for name in content}
    for name in given.keys() - {"ends_at", "webhook"}:
        if given[name] is None:
            raise invalid([FieldError(name, None, "cannot be null; leave it out to keep it as it is")])
    if wanted.spec is not None:
        _check_spec(settings, wanted.spec)
    require_secret(settings, wanted.webhook)
    with db.write() as session:
        schedule = _require(session, schedule_id, lock=True)
        for name, value in given.items():
            setattr(schedule, name, value)
        cron = _cron(schedule.cron, schedule.timezone)
        if given.keys() & {"cron", "timezone", "ends_at", "state"}:
            _wait(schedule, cron, schedules.clock(session))
        session.flush()
        session.refresh(schedule)
        return views.schedule_view(schedule, schedules.nights(session, schedule.id))


@router.delete("/{schedule_id}", status_code=204, response_class=Response, dependencies=[CanSubmit])
def delete(schedule_id: str, db: Db) -> None:
    """Remove a schedule and the record of its nights; its jobs and recipes stay."""
    with db.write() as session:
        session.delete(_require(session, schedule_id, lock=True))


@router.post("/{schedule_id}/run", status_code=201, response_model=schemas.JobOut, dependencies=[CanSubmit])
def run(schedule_id: str, db: Db, settings: Config, asker: Asker) -> Response:
    """Submit a run now, due or not, paused or not; it waits until the run before has ended."""
    job_id = Scheduler(settings, db).run_now(require_id("schedule", schedule_id), asker.token_id)
    with db.read() as session:
        text = views.job_text(session, job_id, settings.lease_s)
    if text is None:  # deleted meanwhile
        raise not_found("job", job_id)
    return answers.one(text, 201, {"Location": f"/v1/jobs/{job_id}"})


def _wait(schedule: Schedule, cron: Cron, now: datetime) -> None:
    """What an active schedule waits for; one that will never be due again has ended."""
    if schedule.state == "paused":
        schedule.next_at = None
        return
    schedule.next_at = _next(cron, now, schedule.ends_at)
    schedule.state = "ended" if schedule.next_at is None else "active"


def _next(cron: Cron, now: datetime, ends_at: datetime | None) -> datetime | None:
    following = cron.next(now)
    return None if following is None or (ends_at is not None and following > ends_at) else following


def _content(body: RawBody) -> dict[str, Any]:
    return read_spec(body) if body.media_type in YAML_TYPES else parse_json(body)


def _cron(expression: str, timezone: str) -> Cron:
    try:
        return Cron(expression, timezone)
    except CronError as error:
        value = expression if error.field == "cron" else timezone
        raise invalid([FieldError(error.field, value, str(error))]) from error


def _check_spec(settings: Settings, spec: dict[str, Any]) -> None:
    """As if it were submitted now; what is wrong is named below `spec`."""
    try:
        submission = within_roots(settings, understand(spec))
        if submission.snapshot_of is not None:
            snapshots.check(submission.snapshot_of, settings.snapshot_mib << 20, settings.home)
    except ProblemError as error:
        fields = [FieldError(f"spec.{e.field}" if e.field else "spec", e.value, e.message) for e in error.errors]
        raise invalid(fields) from error


def _require(session: Session, schedule_id: str, *, lock: bool = False) -> Schedule:
    schedule = schedules.get(session, require_id("schedule", schedule_id), lock=lock)
    if schedule is None:
        raise not_found("schedule", schedule_id)
    return schedule
