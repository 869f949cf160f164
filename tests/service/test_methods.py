"""The verbs that a path answers to."""

from __future__ import annotations

import pytest

from tests.service.support import Service, add_job


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/login", "/v1/jobs", "/v1/jobs?limit=0", "/v1/jobs/x", "/"])
def test_head_answers_as_get_does_without_a_body(shared: Service, path: str) -> None:
    with shared.client() as client:
        full, head = client.get(path), client.head(path)
    assert head.status_code == full.status_code
    assert head.headers["content-type"] == full.headers["content-type"]
    assert head.content == b""


def test_head_of_a_stream_of_events_ends_at_once(service: Service) -> None:
    job_id = add_job(service.database)
    with service.client() as client:
        head = client.head(f"/v1/jobs/{job_id}/events", timeout=5)
        again = client.get("/healthz")
    assert head.status_code == 200
    assert head.headers["content-type"].startswith("text/event-stream")
    assert again.status_code == 200


def test_head_needs_a_token_where_get_does(shared: Service) -> None:
    with shared.client(None) as client:
        assert client.head("/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("POST", "/v1/jobs/x", "GET, HEAD, DELETE"),
        ("GET", "/v1/jobs/x/cancel", "POST"),
        ("HEAD", "/v1/jobs/x/cancel", "POST"),
        ("DELETE", "/v1/runners", "GET, HEAD"),
    ],
)
def test_405_names_every_method_that_the_path_has(shared: Service, method: str, path: str, allowed: str) -> None:
    with shared.client() as client:
        answer = client.request(method, path)
    assert answer.status_code == 405
    assert answer.headers["allow"] == allowed
