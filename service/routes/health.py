"""Is the service up, can it work, and what is it doing: for supervisors and monitoring."""

from __future__ import annotations

import sqlalchemy as sa
from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from service import migrate
from service.auth import CanRead
from service.context import Config, Db
from service.database import Database

router = APIRouter(tags=["health"])


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz", response_model=dict[str, str])
def readyz(request: Request, db: Db) -> Response:
    """The database can be reached and has the schema of this version; 503 otherwise."""
    reason = _why_not_ready(db, request.app.state.schema_head)
    if reason:
        return JSONResponse({"status": "unavailable", "reason": reason}, 503)
    return JSONResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[CanRead])
def metrics(db: Db, settings: Config) -> PlainTextResponse:
    """Prometheus text."""
    from service import metrics as prometheus

    with db.read() as session:
        text = prometheus.text(session, settings.lease_s)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _why_not_ready(db: Database, head: str) -> str | None:
    try:
        found = migrate.revision_of(db.engine)
    except sa.exc.SQLAlchemyError as error:
        return f"The database cannot be reached: {type(error).__name__}."
    if found != head:
        return f"The database is at revision {found or 'none'}, this version needs {head}: run `x5tune migrate`."
    return None
