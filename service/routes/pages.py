"""The pages for people: the latest jobs, and the login."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, RedirectResponse, Response

from service import schemas, views
from service.auth import COOKIE, CanRead, is_same_origin
from service.body import Raw, text_of
from service.context import Config, Db, require_id
from service.database import Database
from service.errors import forbidden, not_found, too_many, unsupported_media_type
from service.job_page import MAX_TRIALS, job_content
from service.markup import Markup, page, table, tag, void
from service.store import jobs, recipes, tokens, trials

router = APIRouter(include_in_schema=False)

RELOAD_S = 5
FAILED_LOGIN_S = 0.5
MAX_FAILED_LOGINS = 20
FAILED_LOGIN_WINDOW_S = 60.0


class FailedLogins:
    """How often logins failed lately, in this process: guessing is slowed for all, whoever guesses."""

    def __init__(self) -> None:
        self._moments: deque[float] = deque(maxlen=MAX_FAILED_LOGINS)

    def note(self, moment: float) -> None:
        self._moments.append(moment)

    def wait_s(self, moment: float) -> float:
        """How long until the next login may be tried; 0 for at once."""
        if len(self._moments) < MAX_FAILED_LOGINS:
            return 0.0
        return max(0.0, self._moments[0] + FAILED_LOGIN_WINDOW_S - moment)


@router.get("/", response_class=HTMLResponse, dependencies=[CanRead])
def home(db: Db, settings: Config) -> str:
    """The latest jobs."""
    with db.read() as session:
        texts = views.job_texts(session, jobs.search(session, limit=30), settings.lease_s)
    latest = [schemas.JobOut.model_validate_json(text) for text in texts]
    if not latest:
        return page(
            "Jobs",
            [
                ("p", "No job yet. Submit the first one:"),
                ("pre", "x5tune submit --workload digits-cnn --watch"),
            ],
        )
    head = ["Job", "Workload", "State", "Trials", "Baseline", "Best", "Study"]
    return page("Jobs", [table(head, [_row(job) for job in latest])])


@router.get("/jobs/{job_id}", response_class=HTMLResponse, dependencies=[CanRead])
def job_page(job_id: str, db: Db, settings: Config) -> str:
    """One job, with its recipes and its trials; a running one is loaded again every few seconds."""
    with db.read() as session:
        text = views.job_text(session, require_id("job", job_id), settings.lease_s)
        if text is None:
            raise not_found("job", job_id)
        of_job = views.RECIPE.rows(session, recipes.of_job(job_id))
        rows = views.TRIAL.rows(session, trials.page(job_id, after=None, limit=MAX_TRIALS))
        tried = views.trial_texts(session, job_id, rows)
    view = schemas.JobOut.model_validate_json(text)
    found = [schemas.RecipeOut.model_validate_json(views.RECIPE.text(row)) for row in of_job]
    shown = [schemas.TrialOut.model_validate_json(text) for text in tried]
    is_open = view.state in jobs.OPEN_STATES
    return page(view.name, job_content(view, found, shown), reload_s=RELOAD_S if is_open else None)


@router.get("/login", response_class=HTMLResponse)
async def login_page(next: str = "/") -> str:  # noqa: A002 - the query parameter's name
    return _login_page(next)


@router.post("/login", response_class=HTMLResponse)
async def login(request: Request, body: Raw, db: Db) -> Response:
    """Exchange a token for a login cookie."""
    if body.media_type != "application/x-www-form-urlencoded":
        raise unsupported_media_type(body.media_type, ("application/x-www-form-urlencoded",))
    has_origin = "sec-fetch-site" in request.headers or "origin" in request.headers
    if has_origin and not is_same_origin(request):
        raise forbidden("Log in from this service's own page.")
    failed: FailedLogins = request.app.state.failed_logins
    wait_s = failed.wait_s(time.monotonic())
    if wait_s > 0:
        raise too_many("Too many failed logins; wait a little.", int(wait_s) + 1)
    form = parse_qs(text_of(body), keep_blank_values=True)
    target = _local(form.get("next", ["/"])[0])
    secret = await run_in_threadpool(_log_in, db, form.get("token", [""])[0].strip())
    if secret is None:
        failed.note(time.monotonic())
        await asyncio.sleep(FAILED_LOGIN_S)
        return HTMLResponse(_login_page(target, "This token is unknown, expired or revoked."), 401)
    response = RedirectResponse(target, 303)
    is_https = request.url.scheme == "https"
    response.set_cookie(
        COOKIE, secret, max_age=int(tokens.SESSION_S), httponly=True, samesite="strict", secure=is_https
    )
    return response


@router.post("/logout", dependencies=[CanRead])
def log_out(request: Request, db: Db) -> Response:
    """End this login."""
    secret = request.cookies.get(COOKIE)
    if secret:
        with db.write() as session:
            tokens.log_out(session, secret)
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


def _log_in(db: Database, token: str) -> str | None:
    with db.read() as session:
        principal = tokens.authenticate(session, token)
    if principal is None:
        return None
    with db.write() as session:
        return tokens.log_in(session, principal.token_id)


def _local(target: str) -> str:
    """Where to go after the login: a path of ours, never another site."""
    is_local = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_local and target.isprintable() and "\\" not in target else "/"


def _login_page(target: str, error: str | None = None) -> str:
    form = tag(
        "form",
        void("input", type="hidden", name="next", value=_local(target)),
        tag("p", tag("label", "Token ", void("input", type="password", name="token", required=True, autofocus=True))),
        tag("p", tag("button", "Log in", type="submit")),
        method="post",
        action="/login",
    )
    parts: list[tuple[str, object] | Markup] = [
        ("p", "Paste an API token. On the machine that serves, client.json in X5TUNE_HOME holds one.")
    ]
    if error:
        parts.append(tag("p", error, class_="error"))
    return page("Log in", [*parts, form], is_public=True)


def _row(job: schemas.JobOut) -> list[object]:
    state = job.state if job.phase is None or job.state != "running" else f"{job.state}: {job.phase}"
    if job.verdict == "no_recommendation":
        state += ", no recommendation"
    if job.waiting_for is not None:
        state += f" ({job.waiting_for.message})"
    total = "" if job.progress.total is None else f" / {job.progress.total}"
    study: object = "" if job.study.url is None else tag("a", "open", href=job.study.url)
    return [
        tag("td", tag("a", job.name, href=f"/jobs/{job.id}"), void("br"), tag("small", job.id)),
        job.workload,
        tag("td", state, class_=job.state),
        tag("td", f"{job.progress.done}{total}", class_="number"),
        tag("td", _value(job.baseline), class_="number"),
        tag("td", _value(job.best), class_="number"),
        study,
    ]


def _value(found: schemas.TrialValue | None) -> str:
    if found is None:
        return "–"
    return found.value_kind if found.value is None else f"{found.value:.5g}"
