"""`python -m service.api_process`: the API on uvicorn, alone or as a child of the supervisor.

`--socket FD` serves on a listening socket that was inherited, `--watch-stdin` ends with the parent.
"""

from __future__ import annotations

import argparse
import gc
import logging
import socket
import sys
from types import FrameType

import uvicorn

from service import logs
from service.allowed import require_meant
from service.api import create_app
from service.children import end_with_parent
from service.errors import PortInUseError, ServiceError
from service.migrate import require_current
from service.settings import Settings

GRACE_S = 3


class Server(uvicorn.Server):
    """Tells open event streams to end when the process is asked to."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        app = self.config.app
        app.state.is_stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; raises `PortInUseError` that says what to do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(256)
    except OSError as error:
        sock.close()
        raise PortInUseError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}. "
            "Stop what listens there, or set X5TUNE_HOST and X5TUNE_PORT."
        ) from error
    return sock


def run(settings: Settings, sock: socket.socket) -> None:
    """Serve until TERM or INT."""
    app = create_app(settings)
    # What is there by now stays. Looked through in each full collection it takes 75 ms, in the midst of a page of jobs.
    gc.collect()
    gc.freeze()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
    Server(config).run(sockets=[sock])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m service.api_process")
    parser.add_argument("--socket", type=int, help="the file descriptor of a listening socket")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input does")
    arguments = parser.parse_args()
    logs.start()
    for chatty in ("alembic", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if arguments.watch_stdin:
        end_with_parent(GRACE_S + 3)
    try:
        settings = Settings.from_environment()
        require_current(settings)
        inherited: int | None = arguments.socket
        require_meant(settings)
        sock = listen(settings.host, settings.port) if inherited is None else socket.socket(fileno=inherited)
    except ServiceError as error:
        sys.stderr.write(f"x5tune: {error}\n")
        return 2
    run(settings, sock)
    return 0


if __name__ == "__main__":
    sys.exit(main())
