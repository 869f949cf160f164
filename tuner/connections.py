"""How we connect to a database, for our own tables and for Optuna's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import make_url

SQLITE_BUSY_S = 60
IDLE_TRANSACTION_S = 60


def connect_arguments(url: str) -> dict[str, Any]:
    """SQLite waits for a lock. PostgreSQL ends a transaction whose client was frozen or cut off in the middle of it: it
    would keep a job from every other runner.
    """
    if url.startswith("sqlite"):
        return {"timeout": SQLITE_BUSY_S}
    given = make_url(url).query.get("options", ())
    options = [given] if isinstance(given, str) else [*given]
    return {"options": " ".join([f"-c idle_in_transaction_session_timeout={IDLE_TRANSACTION_S}s", *options])}
