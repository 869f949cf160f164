"""Jobs over HTTP: submitting, validating, listing, cancelling, deleting, and every way to get it wrong."""

from __future__ import annotations

import gzip
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import optuna
import pytest
import sqlalchemy as sa
from httpx import Response

from service.models import Job, Point, Recipe, Trial
from service.store import recipes, studies
from tests.service.support import SPEC, Service, add_job, new_job, recipe, take

MISSING = "01890000-0000-7000-8000-000000000000"


def problem(answer: Response, status: int) -> dict[str, Any]:
    """The problem that an answer is, checked for its shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert set(found) == {"type", "title", "status", "detail", "instance", "errors"}
    assert found["status"] == status
    return found


def test_a_submitted_job_is_queued_and_complete(any_service: Service) -> None:
    with any_service.client("submit") as client:
        answer = client.post("/v1/jobs", json={**SPEC, "name": "größer als 1 ✓"})
        job = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
        assert client.get(answer.headers["location"]).json() == job
    assert (job["name"], job["state"], job["workload"]) == ("größer als 1 ✓", "queued", "quadratic")
    assert job["spec"] == {**SPEC, "name": "größer als 1 ✓"}
    assert job["resolved"]["budget"]["trials"] == 4
    assert job["progress"] == {"done": 0, "total": 4}
    assert job["study"] == {"name": job["id"], "url": None}
    assert job["waiting_for"]["code"] == "no_runner"
    assert job["spend"]["device_seconds"] == 0
    assert job["created_at"].endswith("Z")
    for key in ("phase", "stop_reason", "verdict", "started_at", "ended_at", "baseline", "best", "error", "parent_id"):
        assert job[key] is None, key


def test_a_job_is_there_before_its_answer_leaves(any_service: Service) -> None:
    with any_service.client() as client:
        for _ in range(10):
            job_id = client.post("/v1/jobs", json=SPEC).json()["id"]
            with any_service.database.read() as session:
                assert session.get(Job, job_id) is not None


def test_yaml_is_a_specification_too(service: Service) -> None:
    with service.client() as client:
        text = "workload: quadratic\nbudget: {trials: 3}\nname: ünï\n"
        answer = client.post("/v1/jobs", content=text, headers={"Content-Type": "application/yaml; charset=utf-8"})
    assert answer.status_code == 201, answer.text
    assert answer.json()["resolved"]["budget"]["trials"] == 3


def test_a_dry_run_validates_and_stores_nothing(service: Service) -> None:
    with service.client() as client:
        answer = client.post("/v1/jobs?dry_run=true", json=SPEC, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 200
        assert set(answer.json()) == {"spec", "resolved", "estimate", "warnings"}
        assert client.get("/v1/jobs").json()["items"] == []


def test_an_invalid_specification_names_every_field(shared: Service) -> None:
    body = {"workload": "quadratic", "search": {"lr": {"low": 2, "high": 1}}, "budget": {"trials": -1}, "wat": 1}
    with shared.client() as client:
        found = problem(client.post("/v1/jobs", json=body), 422)
    fields = {error["field"] for error in found["errors"]}
    assert any(field.startswith("search.lr") for field in fields)
    assert "budget.trials" in fields
    assert "wat" in fields


def test_a_relative_folder_is_422(shared: Service) -> None:
    body = {"workload": {"python": "train.py:train", "folder": "here"}}
    with shared.client() as client:
        found = problem(client.post("/v1/jobs", json=body), 422)
    assert found["errors"][0]["field"] == "workload.folder"
    assert found["errors"][0]["value"] == "here"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a': 1}", b"\xff\xfe", b'{"a": 1, "a": 2}', b'{"a": ' + b"[" * 100_000, b'{"a": 1} x']
)
def test_broken_json_is_400(shared: Service, body: bytes) -> None:
    with shared.client() as client:
        problem(client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"}), 400)


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"null", b"5"])
def test_json_that_is_no_object_is_422(shared: Service, body: bytes) -> None:
    with shared.client() as client:
        problem(client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"}), 422)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 5000])
def test_a_number_that_json_cannot_hold_is_422_and_never_echoed_as_such(shared: Service, number: str) -> None:
    body = f'{{"workload": "quadratic", "baseline": {{"lr": {number}}}}}'
    with shared.client() as client:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    found = problem(answer, 422)
    assert found["errors"][0]["field"] == "baseline.lr"
    json.loads(answer.text, parse_constant=pytest.fail)


@pytest.mark.parametrize("text", ["\\u0000", "\\ud800"])
def test_text_that_cannot_be_stored_is_422(any_service: Service, text: str) -> None:
    body = f'{{"workload": "quadratic", "name": "a{text}b"}}'
    with any_service.client() as client:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/json"})
    assert problem(answer, 422)["errors"][0]["field"] == "name"


@pytest.mark.parametrize("body", [b"a: [", b"a: 1\na: 2", b"- 1", b"!!python/object:os.system x", b"a: &x 1\nb: *x"])
def test_broken_yaml_is_refused(shared: Service, body: bytes) -> None:
    with shared.client() as client:
        answer = client.post("/v1/jobs", content=body, headers={"Content-Type": "application/yaml"})
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", None])
def test_another_media_type_is_415(shared: Service, media_type: str | None) -> None:
    headers = {} if media_type is None else {"Content-Type": media_type}
    with shared.client() as client:
        problem(client.post("/v1/jobs", content=b"{}", headers=headers), 415)


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("br, gzip", 415), ("identity", 201)])
def test_a_compressed_body_is_415(shared: Service, encoding: str, status: int) -> None:
    content = json.dumps(SPEC).encode()
    with shared.client() as client:
        sent = gzip.compress(content) if "gzip" in encoding else content
        headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
        answer = client.post("/v1/jobs", content=sent, headers=headers)
    assert answer.status_code == status
    assert status == 201 or f"compressed (Content-Encoding: {encoding})" in answer.json()["detail"]


def test_a_body_that_says_it_is_too_large_is_413_before_it_is_sent(shared: Service) -> None:
    address = urlsplit(shared.url)
    request = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {shared.secrets['admin']}\r\n"
        "Content-Type: application/json\r\nContent-Length: 99999999\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(request.encode())
        assert b" 413 " in connection.recv(100)


def test_a_streamed_body_that_grows_too_large_is_413(shared: Service) -> None:
    with shared.client() as client:
        chunks = (b" " * 65536 for _ in range(20))
        problem(client.post("/v1/jobs", content=chunks, headers={"Content-Type": "application/json"}), 413)


def test_a_streamed_body_within_the_limit_is_read(service: Service) -> None:
    text = json.dumps(SPEC).encode()
    with service.client() as client:
        answer = client.post(
            "/v1/jobs", content=iter([text[:5], text[5:]]), headers={"Content-Type": "application/json"}
        )
    assert answer.status_code == 201


def test_unknown_paths_and_methods_are_problems(shared: Service) -> None:
    with shared.client() as client:
        problem(client.get("/v1/nothing"), 404)
        problem(client.get("/v1/jobs/"), 404)
        answer = client.put("/v1/jobs", json={})
        problem(answer, 405)
        assert "POST" in answer.headers["allow"] or "GET" in answer.headers["allow"]


@pytest.mark.parametrize("path", [MISSING, "nonsense", "%00", "é", "1" * 300])
@pytest.mark.parametrize("tail", ["", "/trials", "/trials/0", "/confirmations", "/recipes", "/events"])
def test_an_unknown_job_is_404_everywhere(shared: Service, path: str, tail: str) -> None:
    with shared.client() as client:
        problem(client.get(f"/v1/jobs/{path}{tail}"), 404)


def test_an_unknown_job_cannot_be_changed(shared: Service) -> None:
    with shared.client() as client:
        problem(client.post(f"/v1/jobs/{MISSING}/cancel"), 404)
        problem(client.delete(f"/v1/jobs/{MISSING}"), 404)


def test_an_idempotency_key_makes_a_retry_return_the_first_job(any_service: Service) -> None:
    with any_service.client() as client:
        first = client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
        again = client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "k"})
        other = client.post("/v1/jobs", json={**SPEC, "seed": 1}, headers={"Idempotency-Key": "k"})
        assert len(client.get("/v1/jobs").json()["items"]) == 1
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first.json()["id"] in problem(other, 409)["detail"]


def test_one_key_sent_many_times_at_once_makes_one_job(any_service: Service) -> None:
    def submit(_: int) -> tuple[int, str]:
        with any_service.client() as client:
            answer = client.post("/v1/jobs", json=SPEC, headers={"Idempotency-Key": "same"})
            return answer.status_code, answer.json()["id"]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(8)))
    assert len({job_id for _, job_id in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 7 + [201]


def test_pages_hold_every_job_once_newest_first(any_service: Service) -> None:
    ids = [add_job(any_service.database) for _ in range(7)]
    seen: list[str] = []
    cursor = None
    with any_service.client() as client:
        while True:
            params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
            page = client.get("/v1/jobs", params=params).json()
            assert len(page["items"]) <= 3
            seen += [job["id"] for job in page["items"]]
            cursor = page["next"]
            if cursor is None:
                break
            add_job(any_service.database)  # newer jobs do not disturb the pages that follow
    assert seen == ids[::-1]


@pytest.mark.parametrize("cursor", ["nonsense", "", "MTpub25zZW5zZQ", "é", "%00", "MjoxMjM"])
def test_a_bad_cursor_is_422(shared: Service, cursor: str) -> None:
    with shared.client() as client:
        for path in ("/v1/jobs", "/v1/recipes", "/v1/tokens"):
            assert problem(client.get(path, params={"cursor": cursor}), 422)["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize("limit", ["0", "201", "-1", "x", "1.5"])
def test_a_bad_limit_is_422(shared: Service, limit: str) -> None:
    with shared.client() as client:
        assert problem(client.get("/v1/jobs", params={"limit": limit}), 422)["errors"][0]["field"] == "limit"


def test_filters_narrow_the_list(any_service: Service) -> None:
    database = any_service.database
    wanted = add_job(database, name="100%_Ä wanted", workload="digits-cnn")
    add_job(database, name="other", state="failed")
    queries = [
        {"q": "ä WANT" if database.url.startswith("postgresql") else "Ä WANT"},
        {"q": "100%_"},
        {"workload": "digits-cnn"},
        {"state": "queued"},
        {"state": "queued,running"},
        {"id_prefix": wanted},
        {"id_prefix": wanted.upper()},
    ]
    with any_service.client() as client:
        for query in queries:
            found = [job["id"] for job in client.get("/v1/jobs", params=query).json()["items"]]
            assert found == [wanted], query
        assert problem(client.get("/v1/jobs?state=done"), 422)["errors"][0]["value"] == "done"
        problem(client.get("/v1/jobs", params={"q": "\x00"}), 422)


def test_a_page_of_jobs_takes_the_same_number_of_queries_however_long(service: Service) -> None:
    counts = []
    for _ in range(2):
        statements: list[str] = []

        def note(_c: Any, _cur: Any, statement: str, *_: Any, seen: list[str] = statements) -> None:
            seen.append(statement)

        engine = service.app.state.database.engine
        with service.client() as client:
            client.get("/v1/jobs")
            sa.event.listen(engine, "before_cursor_execute", note)
            client.get("/v1/jobs")
            sa.event.remove(engine, "before_cursor_execute", note)
        counts.append(len(statements))
        for _ in range(10):
            add_job(service.database)
    # The first page is empty and needs fewer; a page of ten must not need ten times as many.
    assert counts[1] <= counts[0] + 3


def test_cancelling_a_queued_job_ends_it_for_good(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    with any_service.client() as client:
        job = client.post(f"/v1/jobs/{job_id}/cancel").json()
        again = client.post(f"/v1/jobs/{job_id}/cancel")
    assert (job["state"], job["stop_reason"]) == ("cancelled", "cancelled")
    assert job["ended_at"] is not None
    assert again.status_code == 200
    assert again.json() == job


def test_cancelling_a_running_job_asks_its_runner(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    take(any_service.database)
    with any_service.client() as client:
        job = client.post(f"/v1/jobs/{job_id}/cancel").json()
    assert (job["state"], job["cancel_requested"]) == ("running", True)


def test_cancelling_an_ended_job_changes_nothing(any_service: Service) -> None:
    job_id = add_job(any_service.database, state="succeeded", verdict="recommended")
    with any_service.client() as client:
        job = client.post(f"/v1/jobs/{job_id}/cancel").json()
    assert (job["state"], job["cancel_requested"]) == ("succeeded", False)


@pytest.mark.parametrize("state", ["queued", "running"])
def test_an_open_job_cannot_be_deleted(any_service: Service, state: str) -> None:
    job_id = add_job(any_service.database, state=state)
    with any_service.client() as client:
        problem(client.delete(f"/v1/jobs/{job_id}"), 409)


@pytest.mark.parametrize("with_recipes", [False, True])
def test_a_deleted_job_takes_its_study_along_and_leaves_its_recipes(any_service: Service, with_recipes: bool) -> None:
    database = any_service.database
    with database.write() as session:
        job_id = new_job(session, state="succeeded").id
        session.add(Trial(job_id=job_id, number=0, parameters={}, derived={}))
        session.flush()
        session.add(Point(job_id=job_id, number=0, index=1, position=1, step=1, value=1.0, value_kind="finite"))
        recipes.replace(session, job_id, "quadratic", [recipe(0)], {})
    storage = optuna.storages.RDBStorage(database.url)
    optuna.create_study(study_name=job_id, storage=storage).add_trial(optuna.trial.create_trial(value=1.0))
    storage.scoped_session.remove()
    storage.engine.dispose()

    with any_service.client() as client:
        answer = client.delete(f"/v1/jobs/{job_id}", params={"recipes": "true"} if with_recipes else {})
        assert answer.status_code == 204
        assert answer.content == b""
        problem(client.get(f"/v1/jobs/{job_id}"), 404)
        kept = client.get("/v1/recipes").json()["items"]
    assert [each["job_id"] for each in kept] == ([] if with_recipes else [job_id])
    with database.read() as session:
        assert not studies.exists(session, job_id)
        for table in (Trial, Point):
            assert session.scalar(sa.select(sa.func.count()).select_from(table)) == 0
        assert session.scalar(sa.select(sa.func.count()).select_from(Recipe)) == len(kept)


def test_a_started_job_links_to_its_study(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    take(any_service.database)
    storage = optuna.storages.RDBStorage(any_service.database.url)
    optuna.create_study(study_name=job_id, storage=storage)
    storage.scoped_session.remove()
    storage.engine.dispose()
    with any_service.client() as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["study"]["url"] == "/dashboard/studies/1"


def test_the_openapi_description_is_served_with_the_shapes(shared: Service) -> None:
    with shared.client("read") as client:
        document = client.get("/openapi.json").json()
    assert "waiting_for" in document["components"]["schemas"]["JobOut"]["properties"]
    assert "application/yaml" in document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
