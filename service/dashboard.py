"""The Optuna dashboard behind the API: a child process, started when it is first asked for, proxied read-only.

The dashboard imports scikit-learn and pandas (150 MB, two seconds) and has no login of its own, so it stays out of
this process and answers only requests that carry a secret which this process alone knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

import httpx
from fastapi import APIRouter, Request
from starlette.background import BackgroundTask
from starlette.responses import HTMLResponse, Response, StreamingResponse

from service.auth import CanRead
from service.children import import_path
from service.dashboard_child import SECRET_HEADER
from service.errors import ProblemError, ServiceError
from service.markup import page

log = logging.getLogger("x5tune.dashboard")

START_S = 60.0
PATIENCE_S = 8.0
_FORWARD_REQUEST = ("accept", "accept-encoding", "if-modified-since", "if-none-match", "range")
_FORWARD_RESPONSE = (
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-length",
    "content-range",
    "content-security-policy",
    "content-type",
    "etag",
    "last-modified",
    "location",
)


class DashboardError(ServiceError):
    """The dashboard cannot be shown; the message says why."""


class DashboardStarting(ServiceError):  # noqa: N818 - a state, not an error
    """The dashboard is on its way up."""


class Dashboard:
    """Owns the child process: starts it on demand, again when it has died, and ends it with this process."""

    def __init__(self, database_url: str) -> None:
        self._database_url = database_url
        self._secret = secrets.token_urlsafe(32)
        self._process: Process | None = None
        self._client: httpx.AsyncClient | None = None
        self._starting: asyncio.Task[httpx.AsyncClient] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def client(self) -> httpx.AsyncClient:
        """A client that speaks to the running dashboard. Raises `DashboardStarting` after a few seconds' wait."""
        if self._client is not None and self._process is not None and self._process.returncode is None:
            return self._client
        if importlib.util.find_spec("optuna_dashboard") is None:
            raise DashboardError("optuna-dashboard is not installed: pip install 'x5tune[dashboard]'.")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        starting = self._starting
        done, _ = await asyncio.wait({starting}, timeout=PATIENCE_S)
        if not done:
            raise DashboardStarting("The Optuna dashboard is starting.")
        if self._starting is starting:
            self._starting = None
        return starting.result()

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._starting
        await self._discard()

    async def _start(self) -> httpx.AsyncClient:
        await self._discard()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "service.dashboard_child",
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **import_path()},
            start_new_session=True,
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        # The secret goes through the pipe: arguments and environments of processes can be read by others.
        process.stdin.write(json.dumps({"url": self._database_url, "secret": self._secret}).encode() + b"\n")
        try:
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), START_S)
            port = int(json.loads(line)["port"])
        except (OSError, TimeoutError, ValueError, KeyError) as error:
            await self._discard()
            raise DashboardError("The Optuna dashboard did not start; the service's log has the details.") from error
        self._client = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers={SECRET_HEADER: self._secret}, timeout=60.0, trust_env=False
        )
        log.info("the Optuna dashboard runs as process %s", process.pid)
        return self._client

    async def _discard(self) -> None:
        client, self._client = self._client, None
        process, self._process = self._process, None
        if client is not None:
            await client.aclose()
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


router = APIRouter(include_in_schema=False, dependencies=[CanRead])


async def proxy(request: Request) -> Response:
    """Pass a GET or HEAD on to the dashboard, and its answer back as it comes."""
    dashboard: Dashboard = request.app.state.dashboard
    try:
        try:
            return await _pass_on(await dashboard.client(), request)
        except httpx.TransportError:
            # It died between our look and our request: once more, with a new one.
            return await _pass_on(await dashboard.client(), request)
    except DashboardStarting:
        return _unavailable(request, "The Optuna dashboard is starting. This page tries again.", refresh_s=2)
    except DashboardError as error:
        return _unavailable(request, str(error))
    except httpx.TransportError as error:
        log.warning("the Optuna dashboard does not answer: %s", error)
        return _unavailable(request, "The Optuna dashboard does not answer. This page tries again.", refresh_s=2)


for _path in ("/dashboard", "/dashboard/{_:path}", "/static/{_:path}", "/api/{_:path}", "/csv/{_:path}"):
    router.add_api_route(_path, proxy, methods=["GET", "HEAD"])


async def _pass_on(client: httpx.AsyncClient, request: Request) -> Response:
    headers = {name: request.headers[name] for name in _FORWARD_REQUEST if name in request.headers}
    headers.setdefault("accept-encoding", "identity")
    raw_path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    query: bytes = request.scope.get("query_string", b"")
    target = raw_path.partition(b"?")[0] + (b"?" + query if query else b"")
    outgoing = client.build_request(request.method, httpx.URL(client.base_url, raw_path=target), headers=headers)
    answer = await client.send(outgoing, stream=True)
    passed = {name: answer.headers[name] for name in _FORWARD_RESPONSE if name in answer.headers}
    if "location" in passed:
        passed["location"] = passed["location"].removeprefix(str(client.base_url).rstrip("/"))
    return StreamingResponse(_body(answer), answer.status_code, passed, background=BackgroundTask(answer.aclose))


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    async for chunk in answer.aiter_raw():
        yield chunk


def _unavailable(request: Request, message: str, refresh_s: int | None = None) -> Response:
    if "text/html" not in request.headers.get("accept", ""):
        raise ProblemError(
            503, "dashboard", "Dashboard unavailable", message, headers={"Retry-After": str(refresh_s or 60)}
        )
    headers = {} if refresh_s is None else {"Refresh": str(refresh_s)}
    return HTMLResponse(page("Optuna dashboard", [("p", message)]), 503, headers=headers)
