"""The FastAPI application: `create_app(settings)`. It imports neither torch nor Ray, and Optuna only to delete."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import dashboard, migrate, problems, snapshots
from service.auth import AuthGate
from service.dashboard import Dashboard
from service.database import Database
from service.housekeeping import log_sweep
from service.markup import style_hash
from service.openapi import DescribedApp
from service.routes import (
    events,
    frontiers,
    health,
    jobs,
    pages,
    recipes,
    runners,
    schedules,
    tokens,
    trials,
    workloads,
)
from service.routes.pages import FailedLogins
from service.scheduler import Scheduler
from service.settings import Settings
from service.store.jobs import get as find_job
from service.ticking import Ticking
from service.watching import JobWatch
from service.webhooks import Notifier

SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",  # the dashboard frames its own pages
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
CONTENT_POLICY = (
    f"default-src 'none'; style-src '{style_hash()}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
OWN_PAGES = ("/", "/login")
BEARER = Depends(HTTPBearer(auto_error=False))  # for the description only: `AuthGate` has decided before
TICK_S = 1.0
SWEEP_S = 3600.0
FIRST_SWEEP_S = (30.0, 90.0)  # soon: a service may never live for an hour; not all processes at once
DASHBOARD_PATHS = ("/dashboard", "/static", "/api", "/csv")


class SecurityHeaders:
    """ASGI middleware: adds what every answer should say to a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path: str = scope["path"]
        is_dashboard = path.startswith(DASHBOARD_PATHS)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                if not is_dashboard:
                    headers["X-Frame-Options"] = "DENY"
                    headers.setdefault("Cache-Control", "no-store")
                if path in OWN_PAGES or path.startswith("/jobs/"):
                    headers["Content-Security-Policy"] = CONTENT_POLICY
            await send(message)

        await self.app(scope, receive, send_with_headers)


class HeadAsGet:
    """ASGI middleware: HEAD is answered by what answers GET; the server leaves the body out.

    A stream of events would have no end to wait for: with its first piece the answer is complete, which the server
    reports to it as a disconnect.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].startswith(DASHBOARD_PATHS):
            await self.app(scope, receive, send)
            return
        is_over = False

        async def send_headers(message: Message) -> None:
            nonlocal is_over
            if message["type"] == "http.response.start":
                await send(message)
            elif message["type"] == "http.response.body" and not is_over:
                is_over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})

        await self.app({**scope, "method": "GET"}, receive, send_headers)


def _sweep_snapshots(settings: Settings, database: Database) -> None:
    def is_known(job_id: str) -> bool:
        with database.read() as session:
            return find_job(session, job_id) is not None

    with contextlib.suppress(SQLAlchemyError):  # not there or not migrated yet; `/readyz` says so
        snapshots.sweep(settings.snapshots, is_known)


def create_app(settings: Settings) -> FastAPI:
    """The application. The database must have been migrated (`/readyz` says whether it was)."""
    database = Database(settings.database_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_sweep_snapshots, settings, database)
        notifier = Notifier(settings, database)
        ticking = [
            Ticking("schedules", Scheduler(settings, database).tick, TICK_S),
            Ticking("webhooks", notifier.tick, TICK_S),
            Ticking("housekeeping", lambda: log_sweep(database, settings), SWEEP_S, random.uniform(*FIRST_SWEEP_S)),
        ]
        for each in ticking:
            each.start()
        yield
        app.state.is_stopping = True
        for each in ticking:
            await run_in_threadpool(each.stop)
        notifier.close()
        await app.state.dashboard.close()
        database.close()

    app = DescribedApp(
        title="x5tune",
        summary="Tunes learning rate, batch size, weight decay, loss scale and gradient clip.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.settings = settings
    app.state.database = database
    app.state.dashboard = Dashboard(settings.database_url)
    app.state.schema_head = migrate.head()
    app.state.failed_logins = FailedLogins()
    app.state.is_stopping = False
    app.state.watch = JobWatch(database, lambda: app.state.is_stopping)
    problems.install(app)
    for noun in (jobs, trials, recipes, frontiers, events, schedules, workloads, runners, tokens):
        app.include_router(noun.router, prefix="/v1", dependencies=[BEARER])
    app.include_router(health.router)
    app.include_router(pages.router)
    app.include_router(dashboard.router)
    app.add_middleware(HeadAsGet)
    app.add_middleware(AuthGate, database=database)
    app.add_middleware(SecurityHeaders)
    return app
