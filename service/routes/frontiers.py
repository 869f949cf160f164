"""Frontiers of memory: the largest micro-batches that earlier jobs have proven to fit."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service import answers, paging, schemas, views
from service.auth import CanRead
from service.context import Db, storable
from service.models import Frontier
from service.store import kept

router = APIRouter(prefix="/frontiers", tags=["frontiers"], dependencies=[CanRead])


@router.get("", response_model=schemas.Page[schemas.FrontierOut])
def list_all(
    db: Db,
    workload: str | None = None,
    device: str | None = None,
    cursor: paging.Cursor = None,
    limit: paging.Limit = 50,
) -> Response:
    """What is known to fit, newest first; later jobs on the same workload start from it."""
    before = paging.id_cursor(cursor)
    workload, device = storable("workload", workload), storable("device", device)
    with db.read() as session:
        query = kept.search(Frontier, workload=workload, device=device, before=before, limit=limit + 1)
        rows, following = paging.split(views.FRONTIER.rows(session, query), limit, lambda frontier: frontier.id)
    return answers.page(map(views.FRONTIER.text, rows), following)
