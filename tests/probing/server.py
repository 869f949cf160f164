"""A slot's end of the control socket, no more of it than a script can see."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTINUE = {"go": "continue"}


class Server:
    """Answers every report with the next of `replies`, the last of them again and again; None hangs up instead."""

    def __init__(self, folder: Path, replies: list[Mapping[str, Any] | None]) -> None:
        self.folder = folder
        self.path = str(folder / "c")
        self.connections: list[list[dict[str, Any]]] = []
        self._replies = replies
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def reports(self) -> list[dict[str, Any]]:
        return [message for lines in self.connections for message in lines if message["type"] == "report"]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            lines: list[dict[str, Any]] = []
            self.connections.append(lines)
            self._threads.append(threading.Thread(target=self._talk, args=(connection, lines)))
            self._threads[-1].start()

    def _talk(self, connection: socket.socket, lines: list[dict[str, Any]]) -> None:
        with connection, connection.makefile("rb") as incoming:
            for line in incoming:
                lines.append(json.loads(line))
                if lines[-1]["type"] != "report":
                    continue
                with self._lock:
                    reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
                if reply is None:
                    return
                connection.sendall(json.dumps(reply).encode() + b"\n")


@contextmanager
def serving(*replies: Mapping[str, Any] | None) -> Iterator[Server]:
    """A server in a short folder, because a socket's path has to fit into 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="x5p"))
    server = Server(folder, [*replies] or [CONTINUE])
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(folder)


def run_script(code: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in an interpreter of its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("X5TUNE_") and name != "RANK"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        env={**clean, **environment},
        timeout=timeout_s,
        check=False,
    )
