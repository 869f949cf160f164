"""Who may ask for what: one gate in front of every route, so that a new route is closed until it is opened.

Public are `/healthz`, `/readyz` and `/login`. All else needs `Authorization: Bearer` or the cookie that `/login` sets.
A cookie is sent by the browser on its own, so an unsafe request that carries one must come from our own pages.

Not protected against here: somebody who can read the database or the user's home, and traffic on an unencrypted
network (put a TLS proxy in front where the service leaves the machine).
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated
from urllib.parse import quote, urlsplit

import sqlalchemy as sa
from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service import problems
from service.database import Database
from service.errors import ProblemError, forbidden, unauthorised
from service.store import tokens
from service.store.tokens import Principal
from service.store.tokens import Scope as TokenScope

log = logging.getLogger("x5tune.api")

PUBLIC = frozenset({"/healthz", "/readyz", "/login"})
COOKIE = "x5tune_session"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class AuthGate:
    """ASGI middleware: lets public paths and authenticated requests through, answers the others itself."""

    def __init__(self, app: ASGIApp, database: Database) -> None:
        self.app = app
        self.database = database

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC:
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        try:
            principal = await self._principal(request)
        except ProblemError as problem:
            await refusal(request, problem)(scope, receive, send)
            return
        except sa.exc.OperationalError as error:
            log.error("The database did not answer a login check: %s", error)
            unavailable = ProblemError(503, "database", "Database unavailable", "The database cannot be reached.")
            await problems.render(unavailable, scope["path"])(scope, receive, send)
            return
        scope["x5_principal"] = principal
        await self.app(scope, receive, send)

    async def _principal(self, request: Request) -> Principal:
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        cookie = request.cookies.get(COOKIE)
        if scheme:
            if scheme.lower() != "bearer" or not secret.strip():
                raise unauthorised("The Authorization header must read `Bearer x5t_…`.")
            principal = await run_in_threadpool(self._look_up, secret.strip(), is_cookie=False)
        elif cookie:
            principal = await run_in_threadpool(self._look_up, cookie, is_cookie=True)
        else:
            raise unauthorised("A token is needed: send `Authorization: Bearer x5t_…`, or log in at /login.")
        if principal is None:
            raise unauthorised("The token is unknown, expired or revoked.")
        if principal.is_cookie and request.method not in SAFE_METHODS and not is_same_origin(request):
            raise forbidden("A request with a login cookie must come from this service's own pages.")
        return principal

    def _look_up(self, secret: str, *, is_cookie: bool) -> Principal | None:
        with self.database.read() as session:
            find = tokens.authenticate_session if is_cookie else tokens.authenticate
            principal = find(session, secret)
        if principal is not None and principal.is_touch_due:
            # Worth noting, but not worth a refusal when the database is busy.
            with contextlib.suppress(sa.exc.OperationalError), self.database.write() as session:
                tokens.touch(session, principal.token_id)
        return principal


def refusal(request: Request, problem: ProblemError) -> Response:
    """401 and 403 as problems; a browser that opens a page without a login is sent to it."""
    accepts_html = "text/html" in request.headers.get("accept", "")
    if problem.status == 401 and request.method == "GET" and accepts_html:
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/login?next={quote(target, safe='')}", 303)
    return problems.render(problem, request.url.path)


def is_same_origin(request: Request) -> bool:
    """Whether a browser says that the request comes from our own pages; no word from it counts as no."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == request.headers.get("host")


def require(scope: TokenScope) -> Callable[[Request], Awaitable[Principal]]:
    """A dependency that lets only tokens of this scope, or a wider one, through."""

    async def check(request: Request) -> Principal:
        principal: Principal = request.scope["x5_principal"]
        if not principal.allows(scope):
            raise forbidden(f"This needs a token with the scope {scope}; the one used has {principal.scope}.")
        return principal

    return check


CanRead = Depends(require("read"))
CanSubmit = Depends(require("submit"))
IsAdmin = Depends(require("admin"))
Asker = Annotated[Principal, CanRead]
