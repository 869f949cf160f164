"""Tokens and login sessions. Only hashes are stored; secrets are compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.database import now
from service.models import LoginSession, Token

Scope = Literal["read", "submit", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "admin")

TOKEN_PREFIX = "x5t_"  # noqa: S105 - not a secret: what our secrets start with
SESSION_PREFIX = "x5s_"
SESSION_S = 12 * 3600.0
TOUCH_S = 60.0


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the token behind the request, and whether it came by a cookie."""

    token_id: str
    scope: Scope
    is_cookie: bool
    is_touch_due: bool = False

    def allows(self, needed: Scope) -> bool:
        """Each scope includes those before it."""
        return SCOPES.index(self.scope) >= SCOPES.index(needed)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def create(session: Session, name: str, scope: Scope, expires_at: datetime | None = None) -> tuple[Token, str]:
    """A new token and its secret, which is not shown again."""
    secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
    token = Token(name=name, scope=scope, hash=digest(secret), expires_at=expires_at)
    session.add(token)
    session.flush()
    return token, secret


def page(session: Session, *, before: str | None, limit: int) -> Sequence[Token]:
    """Tokens that were not revoked, the newest first."""
    query = sa.select(Token).where(Token.revoked_at.is_(None)).order_by(Token.id.desc()).limit(limit)
    return session.scalars(query if before is None else query.where(Token.id < before)).all()


def revoke(session: Session, token_id: str) -> bool:
    """End a token and the logins that rest on it; False when there is none."""
    found = session.execute(
        sa.update(Token)
        .where(Token.id == token_id, Token.revoked_at.is_(None))
        .values(revoked_at=now())
        .returning(Token.id)
        .execution_options(synchronize_session=False)
    ).first()
    session.execute(sa.delete(LoginSession).where(LoginSession.token_id == token_id))
    return found is not None


def authenticate(session: Session, secret: str) -> Principal | None:
    """Who holds this token, if it is valid now."""
    return _principal(session, _BY_TOKEN, secret, is_cookie=False)


def authenticate_session(session: Session, secret: str) -> Principal | None:
    """Who is logged in with this cookie, if the login and its token are valid now."""
    return _principal(session, _BY_COOKIE, secret, is_cookie=True)


def touch(session: Session, token_id: str) -> None:
    """Note that a token was used (at most once a minute: see `Principal.is_touch_due`)."""
    session.execute(sa.update(Token).where(Token.id == token_id).values(last_used_at=now()))


def lock(session: Session, token_id: str) -> None:
    """Keep others from doing so until the transaction ends; reading it stays free. SQLite has one writer anyway."""
    session.execute(sa.select(Token.id).where(Token.id == token_id).with_for_update(key_share=True))


def log_in(session: Session, token_id: str) -> str:
    """A new login session's secret, and an end to those that have expired."""
    session.execute(sa.delete(LoginSession).where(LoginSession.expires_at <= now()))
    secret = SESSION_PREFIX + secrets.token_urlsafe(32)
    session.execute(sa.insert(LoginSession).values(token_id=token_id, hash=digest(secret), expires_at=now(SESSION_S)))
    return secret


def log_out(session: Session, secret: str) -> None:
    session.execute(sa.delete(LoginSession).where(LoginSession.hash == digest(secret)))


def _principal(
    session: Session, query: sa.Select[str, str, str, bool], secret: str, *, is_cookie: bool
) -> Principal | None:
    hashed = digest(secret)
    row = session.execute(query, {"hashed": hashed}).first()
    if row is None or not hmac.compare_digest(row[0], hashed):
        return None
    _, token_id, scope, is_touch_due = row
    return Principal(token_id, cast(Scope, scope), is_cookie=is_cookie, is_touch_due=bool(is_touch_due))


# Made once: every request asks one of them, and making it takes longer than asking it.
_HASHED = sa.bindparam("hashed", type_=sa.String)
_IS_VALID = sa.and_(Token.revoked_at.is_(None), sa.or_(Token.expires_at.is_(None), Token.expires_at > now()))
_IS_TOUCH_DUE = sa.or_(Token.last_used_at.is_(None), Token.last_used_at < now(-TOUCH_S))
_BY_TOKEN = sa.select(Token.hash, Token.id, Token.scope, _IS_TOUCH_DUE).where(Token.hash == _HASHED, _IS_VALID)
_BY_COOKIE = (
    sa.select(LoginSession.hash, Token.id, Token.scope, _IS_TOUCH_DUE)
    .join(Token, Token.id == LoginSession.token_id)
    .where(LoginSession.hash == _HASHED, LoginSession.expires_at > now(), _IS_VALID)
)
