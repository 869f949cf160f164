"""The runners that are or were lately connected."""

from __future__ import annotations

from fastapi import APIRouter

from service import schemas, views
from service.auth import CanRead
from service.context import Config, Db
from service.store import runners

router = APIRouter(prefix="/runners", tags=["runners"], dependencies=[CanRead])


@router.get("", response_model=schemas.Page[schemas.RunnerOut])
def list_runners(db: Db, settings: Config) -> schemas.Page[schemas.RunnerOut]:
    """Every runner heard of within a day, silent ones as `lost`; always one page."""
    with db.read() as session:
        seen = runners.seen(session, settings.lease_s)
    return schemas.Page[schemas.RunnerOut](items=[views.runner_view(each) for each in seen], next=None)
