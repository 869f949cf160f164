"""Requests over connections that break."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import httpx

from x5tune.errors import Unreachable

TIMEOUT = 30.0
RETRY_S = 10.0
NOT_FROM_US = (502, 503, 504)


class Retrying:
    """Sends again what may be sent again, for up to `RETRY_S`.

    A service that refuses the very first connection is down: that is said at once. One that breaks a connection may be
    restarting, and may have done what was asked; so only calls that can be repeated are: everything but a POST without
    an Idempotency-Key (cancelling is one that can).
    """

    def __init__(self, http: httpx.Client, url: str) -> None:
        self._http = http
        self._url = url

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        headers = dict(headers or {})
        is_repeatable = method != "POST" or "Idempotency-Key" in headers or path.endswith("/cancel")
        deadline = time.monotonic() + RETRY_S
        pause_s, was_delivered = 0.2, False
        while True:
            try:
                answer = self._http.request(method, path, headers=headers, **options)
                if not _is_gateway(answer):
                    return answer
                failure: Exception = Unreachable(self._url, f"a gateway answers HTTP {answer.status_code}.")
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
                failure = self.unreachable(error)
            except httpx.TransportError as error:
                was_delivered = True
                failure = self.unreachable(error)
            if not (was_delivered and is_repeatable) or time.monotonic() + pause_s > deadline:
                raise failure
            time.sleep(pause_s)
            pause_s = min(2.0, pause_s * 2)

    def unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(self._url, _reason(error))


def _is_gateway(answer: httpx.Response) -> bool:
    """Whether a proxy answers for a service that is not there; x5tune's own 503 is a problem document."""
    return answer.status_code in NOT_FROM_US and "json" not in answer.headers.get("content-type", "")


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "it does not answer."
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time."
    if isinstance(error, httpx.ConnectError):
        text = str(error)
        if "refused" in text:
            return "nothing listens there."
        if "CERTIFICATE" in text or "SSL" in text:
            return f"the TLS connection failed ({text})."
        if "Name or service" in text or "nodename" in text or "resolution" in text:
            return "there is no such host."
        return f"{text}."
    return "the connection broke."
