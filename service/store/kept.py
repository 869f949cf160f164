"""Looking up what is kept for ever, whatever becomes of its job."""

from __future__ import annotations

from typing import TypeVar

import sqlalchemy as sa

from service.models import Frontier, Recipe

Kept = TypeVar("Kept", Frontier, Recipe)


def search(
    model: type[Kept], *, workload: str | None, device: str | None, before: str | None, limit: int
) -> sa.Select[Kept]:
    """Rows newest first, those older than the id `before`."""
    query = sa.select(model).order_by(model.id.desc()).limit(limit)
    if workload is not None:
        query = query.where(model.workload == workload)
    if device is not None:
        query = query.where(model.device == device)
    return query if before is None else query.where(model.id < before)
