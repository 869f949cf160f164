"""How the processes of the service write their logs: one line an entry, whatever a request or a script says."""

from __future__ import annotations

import logging
import sys
import unicodedata


class OneLine(logging.Formatter):
    """Control characters and line breaks in what is told are written as escapes; tracebacks stay as they are."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return "".join(_shown(character) for character in super().formatMessage(record))


def _shown(character: str) -> str:
    is_plain = character.isprintable() or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp")
    return character if is_plain else character.encode("unicode_escape").decode()


def start() -> None:
    """Log to standard error from here on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
