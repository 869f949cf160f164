"""The gate: every route without a token, with each scope, by cookie, from elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute, iter_route_contexts

from service.auth import COOKIE, PUBLIC
from service.database import now
from service.models import LoginSession, Token
from service.store import tokens
from tests.service.support import SPEC, Service

ID = "01890000-0000-7000-8000-000000000000"
READ_MAY_NOT_GET = {"/v1/tokens"}


def routes(service: Service) -> list[tuple[str, str]]:
    """Every method and path that the application knows, FastAPI's own included."""
    found = []
    for context in iter_route_contexts(service.app.routes):
        methods = context.methods or set()
        found += [(method, str(context.path)) for method in sorted(methods)]
    assert len(found) > 30
    return found


def concrete(path: str) -> str:
    """The path with something in the place of every parameter, those of routes to come included."""
    filled = path.replace("{number}", "0").replace("{name}", "quadratic").replace("{_:path}", "x")
    return re.sub(r"\{\w+\}", ID, filled)


@contextlib.contextmanager
def log_in(service: Service, token: str) -> Iterator[httpx.Client]:
    with service.client(None) as client:
        assert client.post("/login", data={"token": token}).status_code == 303
        yield client


def test_every_route_but_the_public_ones_needs_a_token(shared: Service) -> None:
    with shared.client(None) as client:
        for method, path in routes(shared):
            answer = client.request(method, concrete(path))
            if path in PUBLIC:
                assert answer.status_code != 401 or path == "/login", (method, path)
            else:
                assert answer.status_code == 401, (method, path)
                assert answer.headers["www-authenticate"].startswith("Bearer"), (method, path)


def test_a_read_token_may_read_everything_and_change_nothing(service: Service) -> None:
    with service.client("read") as client:
        for method, path in routes(service):
            if path in PUBLIC or path.startswith(("/dashboard", "/static", "/api", "/csv")) or path == "/logout":
                continue
            answer = client.request(method, concrete(path), json={} if method in ("POST", "PATCH", "PUT") else None)
            is_refused = answer.status_code == 403
            expected = method not in ("GET", "HEAD") or path in READ_MAY_NOT_GET
            assert is_refused == expected, (method, path, answer.status_code)


@pytest.mark.parametrize("kind", ["none", "expired", "revoked", "cookie_from_elsewhere"])
def test_no_call_of_the_description_lets_in_who_may_not(service: Service, kind: str) -> None:
    with service.client() as admin:
        document = admin.get("/openapi.json").json()
        made = admin.post("/v1/tokens", json={"name": "t", "scope": "admin"}).json()
    headers = {"Authorization": f"Bearer {made['token']}"}
    with service.database.write() as session:
        if kind == "expired":
            session.execute(sa.update(Token).where(Token.id == made["id"]).values(expires_at=now(-1)))
        elif kind == "revoked":
            tokens.revoke(session, made["id"])
        elif kind == "cookie_from_elsewhere":
            headers = {"Cookie": f"{COOKIE}={tokens.log_in(session, made['id'])}", "Origin": "http://evil.example"}
        else:
            headers = {}
    asked = [(method.upper(), path) for path, calls in document["paths"].items() for method in calls]
    pages = [
        ("GET", path) for path in ("/", "/docs", "/openapi.json", "/dashboard", "/static/x", "/api/studies", "/csv/1")
    ]
    with service.client(None) as client:
        for method, path in [*asked, *pages, ("POST", "/logout"), ("PUT", "/api/studies"), ("GET", "/v1/none")]:
            is_let_in = path in PUBLIC or (kind == "cookie_from_elsewhere" and method == "GET")
            if is_let_in:
                continue
            answer = client.request(method, concrete(path), headers=headers, json={})
            assert answer.status_code == (403 if kind == "cookie_from_elsewhere" else 401), (method, path)
            assert answer.headers["content-type"] == "application/problem+json"


def test_a_submit_token_submits_but_makes_no_tokens(service: Service) -> None:
    with service.client("submit") as client:
        assert client.post("/v1/jobs", json=SPEC).status_code == 201
        answer = client.post("/v1/tokens", json={"name": "more"})
    assert answer.status_code == 403
    assert "admin" in answer.json()["detail"]


def test_an_unknown_path_says_nothing_without_a_token(shared: Service) -> None:
    with shared.client(None) as client:
        assert client.get("/v1/nothing").status_code == 401


@pytest.mark.parametrize("header", ["x5t_wrong", "Bearer", "Bearer x5t_wrong", "Basic abc", "Bearer é"])
def test_a_bad_authorization_header_is_401(shared: Service, header: str) -> None:
    with shared.client(None) as client:
        answer = client.get("/v1/jobs", headers={b"Authorization": header.encode()})
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_expired_token_is_401(service: Service) -> None:
    with service.client() as client:
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        made = client.post("/v1/tokens", json={"name": "t", "scope": "read", "expires_at": soon}).json()
        headers = {"Authorization": f"Bearer {made['token']}"}
        assert client.get("/v1/jobs", headers=headers).status_code == 200
        with service.database.write() as session:
            session.execute(sa.update(Token).where(Token.id == made["id"]).values(expires_at=now(-1)))
        assert client.get("/v1/jobs", headers=headers).status_code == 401


def test_a_token_is_shown_once_and_revoked_at_once(service: Service) -> None:
    with service.client() as client:
        made = client.post("/v1/tokens", json={"name": "t", "scope": "read"}).json()
        listed = next(item for item in client.get("/v1/tokens").json()["items"] if item["id"] == made["id"])
        assert "token" not in listed
        assert made["token"].startswith("x5t_")
        assert client.delete(f"/v1/tokens/{made['id']}").status_code == 204
        answer = client.get("/v1/jobs", headers={"Authorization": f"Bearer {made['token']}"})
        assert answer.status_code == 401
        assert client.delete(f"/v1/tokens/{made['id']}").status_code == 404


def test_secrets_are_not_in_the_database(service: Service) -> None:
    with log_in(service, service.secrets["admin"]), service.database.read() as session:
        for table in (Token, LoginSession):
            for row in session.execute(sa.select(table.hash)):
                assert len(row[0]) == 64


def test_the_use_of_a_token_is_noted(service: Service) -> None:
    with service.client() as client:
        client.get("/v1/jobs")
        items = client.get("/v1/tokens").json()["items"]
    assert {item["name"]: item["last_used_at"] is not None for item in items}["admin"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "  "},
        {"name": "a\x1b[31mb"},
        {"name": "a\nb"},
        {"name": "t", "scope": "root"},
        {"name": "t", "extra": 1},
        {"name": 5},
        {"name": "t", "expires_at": "9999-12-31T23:59:59-12:00"},
    ],
)
def test_a_bad_token_request_is_422_with_the_field(shared: Service, body: dict[str, Any]) -> None:
    with shared.client() as client:
        answer = client.post("/v1/tokens", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"]


def test_what_is_missing_from_a_request_has_no_value(shared: Service) -> None:
    with shared.client() as client:
        errors = client.post("/v1/tokens", json={}).json()["errors"]
    assert errors == [{"field": "name", "value": None, "message": "is missing"}]


def test_a_browser_without_a_login_is_sent_to_it_and_back(service: Service) -> None:
    with service.client(None) as client:
        sent = client.get("/docs?x=1", headers={"Accept": "text/html,*/*"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/login?next=%2Fdocs%3Fx%3D1")
        page = client.get(sent.headers["location"])
        assert 'value="/docs?x=1"' in page.text
        answer = client.post("/login", data={"token": service.secrets["read"], "next": "/docs?x=1"})
        assert answer.headers["location"] == "/docs?x=1"
        assert client.get("/v1/jobs").status_code == 200


def test_the_login_cookie_is_not_the_token_and_out_of_reach_of_scripts_and_other_sites(shared: Service) -> None:
    with shared.client(None) as client:
        cookie = client.post("/login", data={"token": shared.secrets["read"]}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert shared.secrets["read"] not in cookie


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:x", "/a\r\nb"]
)
def test_the_login_never_leads_to_another_site(shared: Service, target: str) -> None:
    with shared.client(None) as client:
        answer = client.post("/login", data={"token": shared.secrets["read"], "next": target})
    assert answer.headers["location"] == "/"


def test_a_cookie_has_its_tokens_scope_and_ends_with_it(service: Service) -> None:
    with service.client() as admin:
        made = admin.post("/v1/tokens", json={"name": "t", "scope": "read"}).json()
        with log_in(service, made["token"]) as client:
            assert client.get("/v1/jobs").status_code == 200
            assert client.get("/v1/tokens").status_code == 403
            admin.delete(f"/v1/tokens/{made['id']}")
            assert client.get("/v1/jobs").status_code == 401


def test_a_login_ends_after_its_time(service: Service) -> None:
    with log_in(service, service.secrets["admin"]) as client:
        with service.database.write() as session:
            session.execute(sa.update(LoginSession).values(expires_at=now(-1)))
        assert client.get("/v1/jobs").status_code == 401


def test_logging_out_ends_the_login(service: Service) -> None:
    with log_in(service, service.secrets["admin"]) as client:
        secret = client.cookies["x5tune_session"]
        assert client.post("/logout", headers={"Origin": service.url}).status_code == 303
        client.cookies.set("x5tune_session", secret)
        assert client.get("/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, 201),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({}, 403),
    ],
)
def test_a_cookie_changes_things_only_from_our_own_pages(
    service: Service, headers: dict[str, str], status: int
) -> None:
    with log_in(service, service.secrets["submit"]) as client:
        assert client.post("/v1/jobs", json=SPEC, headers=headers).status_code == status


def test_a_login_from_another_site_is_refused(shared: Service) -> None:
    with shared.client(None) as client:
        data = {"token": shared.secrets["read"]}
        assert client.post("/login", data=data, headers={"Origin": "http://evil.example"}).status_code == 403


def test_failed_logins_are_slowed_and_in_the_end_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.routes.pages.FAILED_LOGIN_S", 0.01)
    with service.client(None) as client:
        statuses = [client.post("/login", data={"token": f"x5t_{n}"}).status_code for n in range(21)]
        answer = client.post("/login", data={"token": service.secrets["read"]})
    assert statuses == [401] * 20 + [429]
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) > 0


def test_answers_carry_the_headers_that_browsers_need(shared: Service) -> None:
    with shared.client() as client:
        headers = client.get("/").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


def test_principals_of_each_scope_include_those_below() -> None:
    allowed = {
        scope: [needed for needed in tokens.SCOPES if tokens.Principal("", scope, is_cookie=False).allows(needed)]
        for scope in tokens.SCOPES
    }
    assert allowed == {"read": ["read"], "submit": ["read", "submit"], "admin": ["read", "submit", "admin"]}


def test_api_routes_under_v1_all_state_who_may_use_them(shared: Service) -> None:
    for context in iter_route_contexts(shared.app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and str(context.path).startswith("/v1"):
            assert "check" in str([d.dependency for d in context.dependencies]), context.path
