"""`python -m service.dashboard_child`: Optuna's dashboard on a port of its own, for its parent only.

Reads `{"url", "secret"}` from standard input, prints `{"port"}`, and ends when standard input does: whatever becomes
of the parent, this process does not outlive it.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

SECRET_HEADER = "X-X5tune-Dashboard"  # noqa: S105 - the header's name

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base's name
        """Quiet: the API logs what matters."""


def guarded(app: WsgiApp, secret: str) -> WsgiApp:
    """`app` for those who know the secret, reading only."""
    key = "HTTP_" + SECRET_HEADER.upper().replace("-", "_")

    def guard(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if not hmac.compare_digest(str(environ.get(key, "")).encode(), secret.encode()):
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"This port is for the x5tune service only.\n"]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Content-Type", "text/plain"), ("Allow", "GET, HEAD")])
            return [b"Read only.\n"]
        return app(environ, start_response)

    return guard


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import optuna
    from optuna_dashboard import wsgi

    url = str(config["url"])
    engine_kwargs = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    storage = optuna.storages.RDBStorage(url, engine_kwargs=engine_kwargs, skip_table_creation=True)
    app = guarded(wsgi(storage), str(config["secret"]))
    with make_server("127.0.0.1", 0, app, server_class=_Server, handler_class=_Handler) as server:
        sys.stdout.write(json.dumps({"port": server.server_port}) + "\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main()
