"""Every answer that is not a success: RFC 9457 `application/problem+json`, from one place."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import sqlalchemy as sa
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from service.clean import clean_json
from service.errors import FieldError, ProblemError, invalid
from service.validation import field_errors
from tuner.spec_problems import echo

log = logging.getLogger("x5tune.api")

MEDIA_TYPE = "application/problem+json"


def install(app: FastAPI) -> None:
    app.add_exception_handler(ProblemError, _on_problem)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(sa.exc.OperationalError, _on_database_error)
    app.add_exception_handler(Exception, _on_bug)


def render(problem: ProblemError, instance: str) -> JSONResponse:
    return _response(
        problem.status,
        problem.kind,
        problem.title,
        problem.detail,
        instance,
        errors=problem.errors,
        headers=problem.headers,
    )


def _response(
    status: int,
    kind: str,
    title: str,
    detail: str,
    instance: str,
    *,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    content = {
        "type": "about:blank" if kind == "about:blank" else f"urn:x5tune:problem:{kind}",
        "title": title,
        "status": status,
        "detail": detail,
        "instance": instance,
        "errors": [{"field": e.field, "value": _short(e.value), "message": e.message} for e in errors],
    }
    return JSONResponse(clean_json(content), status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def _short(value: Any) -> Any:
    """What was given, or its beginning where echoing it would make the answer as large as the request."""
    if isinstance(value, str):
        return value if len(value) <= 500 else value[:500] + "…"
    return value if len(repr(value)) <= 500 else echo(value)


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return render(error, request.url.path)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    detail = {
        404: f"There is nothing at {request.url.path[:200]}.",
        405: f"{request.method} is not supported here.",
    }.get(error.status_code, str(error.detail))
    kind = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "about:blank")
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))  # Starlette names the methods of the first route only
    return _response(error.status_code, kind, phrase, detail, request.url.path, headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods that the path of `request` answers to."""
    found = [
        method
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    return ["GET", "HEAD", *found[1:]] if "GET" in found else found


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return render(invalid(field_errors(error.errors(), 1)), request.url.path)


async def _on_database_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, sa.exc.OperationalError)
    log.error("The database did not answer %s %s: %s", request.method, request.url.path, error.orig)
    detail = "The database cannot be reached or is busy; try again."
    if any(sign in str(error.orig) for sign in ("is full", "No space left", "disk quota")):
        detail = "The disk that holds the database is full: free some space there, then try again."
    elif "readonly" in str(error.orig):
        detail = "The database cannot be written to: the service's user needs the right to write its file and folder."
    return _response(503, "database", "Database unavailable", detail, request.url.path, headers={"Retry-After": "5"})


async def _on_bug(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    detail = "This is a bug in x5tune; the service's log has the details."
    return _response(500, "internal", "Internal error", detail, request.url.path)
