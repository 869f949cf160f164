"""API tokens: made, listed and revoked by an admin."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from service import paging, schemas
from service.auth import IsAdmin
from service.body import Raw, parse_json
from service.context import Db, require_id
from service.errors import FieldError, invalid, not_found
from service.fields import Moment, Name
from service.store import tokens
from service.validation import validated

router = APIRouter(prefix="/tokens", tags=["tokens"], dependencies=[IsAdmin])


class TokenRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Name
    scope: Literal["read", "submit", "admin"] = "submit"
    expires_at: Moment | None = None


_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": TokenRequest.model_json_schema()}}}
}


@router.post("", status_code=201, response_model=schemas.NewToken, openapi_extra=_BODY)
def create(body: Raw, db: Db) -> schemas.NewToken:
    """Make a token. The answer holds its secret, which is not shown again."""
    wanted = validated(TokenRequest, parse_json(body))
    if wanted.expires_at is not None and wanted.expires_at <= datetime.now(UTC):
        raise invalid([FieldError("expires_at", wanted.expires_at.isoformat(), "is in the past")])
    with db.write() as session:
        token, secret = tokens.create(session, wanted.name, wanted.scope, wanted.expires_at)
        session.refresh(token)
    view = schemas.TokenOut.model_validate(token)
    return schemas.NewToken(**{name: getattr(view, name) for name in schemas.TokenOut.model_fields}, token=secret)


@router.get("", response_model=schemas.Page[schemas.TokenOut])
def list_tokens(db: Db, cursor: paging.Cursor = None, limit: paging.Limit = 50) -> schemas.Page[schemas.TokenOut]:
    """The tokens that were not revoked, newest first; never their secrets."""
    before = paging.id_cursor(cursor)
    with db.read() as session:
        rows = tokens.page(session, before=before, limit=limit + 1)
    page, following = paging.split(rows, limit, lambda token: token.id)
    items = [schemas.TokenOut.model_validate(row) for row in page]
    return schemas.Page[schemas.TokenOut](items=items, next=following)


@router.delete("/{token_id}", status_code=204, response_class=Response)
def revoke(token_id: str, db: Db) -> None:
    """Revoke a token, at once, with the logins that rest on it."""
    with db.write() as session:
        found = tokens.revoke(session, require_id("token", token_id))
    if not found:
        raise not_found("token", token_id)
