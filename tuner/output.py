"""What is kept of a probe's output: the beginning and the end, whatever the amount."""

from __future__ import annotations

HEAD_BYTES = 16 * 1024
TAIL_BYTES = 48 * 1024


class OutputTail:
    """Collects bytes up to a fixed memory; the middle is dropped and counted."""

    def __init__(self, head_bytes: int = HEAD_BYTES, tail_bytes: int = TAIL_BYTES) -> None:
        self._head_bytes = head_bytes
        self._tail_bytes = tail_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def write(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_bytes - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room > 0 else data
        if len(self._tail) > 2 * self._tail_bytes:
            del self._tail[: -self._tail_bytes]

    def text(self) -> str:
        """UTF-8 text with undecodable bytes replaced and NUL removed (PostgreSQL refuses it)."""
        tail = bytes(self._tail[-self._tail_bytes :])
        dropped = self._total - len(self._head) - len(tail)
        middle = f"\n[... {dropped} bytes left out ...]\n".encode() if dropped else b""
        return (bytes(self._head) + middle + tail).decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
