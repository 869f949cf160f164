"""What somebody sends who means harm, or has a bug: refused with the field, or kept as the text that it is."""

from __future__ import annotations

import json
import logging
import math
import socket
from typing import Any

import httpx
import pytest

from tests.service.support import SPEC, Service
from tests.service.test_jobs_api import problem

YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
LAUGHS = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in ("ab", "bc", "cd", "de"))


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "<script>alert(1)</script>", "'; DROP TABLE x5_jobs; --", "%s{0}$(id)"]
)
def test_a_name_is_only_ever_text(service: Service, name: str) -> None:
    with service.client() as client:
        job = client.post("/v1/jobs", json={**SPEC, "name": name}).json()
        found = client.get("/v1/jobs", params={"q": name}).json()["items"]
        page = client.get("/").text
    assert [job["name"], *(each["name"] for each in found)] == [name, name]
    assert "<script>" not in page
    assert not [path for path in service.settings.home.rglob("*") if "passwd" in path.name]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"name": "x" * 1_000_000}, "name"),
        ({"name": "a\n2026-01-01 forged: all is well"}, "name"),
        ({"workload": "../../etc/passwd"}, "workload"),
        ({"workload": {"python": "../../etc/passwd:train", "folder": "/"}}, "workload.python"),
        ({"budget": {"trials": 10**400}}, "budget.trials"),
        ({"budget": {"trials": -(10**400)}}, "budget.trials"),
        ({"budget": {"trials": -1}}, "budget.trials"),
        ({"seed": 2**63}, "seed"),
        ({"priority": -1e308}, "priority"),
        ({"search": {"lr": {"choices": [0.1] * 100_000}}}, "search.lr.choices"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_specification_beyond_all_bounds_is_422_at_its_field(
    shared: Service, spec: dict[str, Any], field: str
) -> None:
    with shared.client("submit") as client:
        errors = problem(client.post("/v1/jobs", json={**SPEC, **spec}), 422)["errors"]
    assert field in [error["field"] for error in errors]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (LAUGHS, YAML, 400),
        ("!!python/object/apply:os.system [id]", YAML, 400),
        ("[" * 5000, YAML, 400),
        ("[" * 50_000, JSON, 400),
        ('{"seed": ' + "9" * 100_000 + "}", JSON, 422),
        ('{"seed": 1e999}', JSON, 422),
        ("x" * 1_100_000, YAML, 413),
    ],
    ids=["aliases", "tag", "deep YAML", "deep JSON", "digits", "infinite", "large"],
)
def test_a_body_that_is_a_bomb_is_refused(shared: Service, body: str, headers: dict[str, str], status: int) -> None:
    with shared.client("submit") as client:
        problem(client.post("/v1/jobs", content=body, headers=headers), status)


@pytest.mark.parametrize(
    "query", ["q=" + "x" * 50_000, "id_prefix=" + "0" * 50_000, "limit=" + "9" * 30, "limit=-1", "cursor=..%2f..%2fetc"]
)
def test_a_query_beyond_all_bounds_is_422(shared: Service, query: str) -> None:
    with shared.client("read") as client:
        problem(client.get(f"/v1/jobs?{query}"), 422)


@pytest.mark.parametrize(
    "path", ["/v1/jobs/..%2f..%2fetc%2fpasswd", "/v1/recipes/..%2fx/export", "/..%2f..%2fetc%2fpasswd"]
)
def test_a_path_leads_nowhere_else(shared: Service, path: str) -> None:
    with shared.client() as client:
        problem(client.get(path), 404)


def test_a_client_that_goes_away_in_the_midst_of_its_request_is_no_error_of_ours(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    where = httpx.URL(service.url)
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.secrets['submit']}\r\n"
    for _ in range(3):
        with socket.create_connection((where.host, where.port or 0), 10) as sock:
            sock.sendall(f'{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{"workload"'.encode())
    with service.client() as client:
        assert client.get("/v1/jobs").json()["items"] == []
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    "body",
    [
        {"k" * 900_000: 1},
        {f"k{number}": 1 for number in range(50_000)},
        {"name": [math.nan] * 50_000},
        {"name": {"choices": [0.1] * 100_000}},
    ],
    ids=["one long key", "many keys", "many that cannot be stored", "a long value"],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/schedules", "/v1/tokens"])
def test_an_answer_is_never_as_large_as_what_it_refuses(shared: Service, path: str, body: dict[str, Any]) -> None:
    with shared.client() as client:
        answer = client.post(path, content=json.dumps(body), headers=JSON)
    assert problem(answer, 422)["errors"][0]["message"]
    assert len(answer.content) < 20_000


@pytest.mark.parametrize("path", ["/v1/schedules", "/v1/tokens"])
def test_an_unknown_key_is_told_with_the_nearest_and_the_valid_ones(shared: Service, path: str) -> None:
    with shared.client() as client:
        errors = problem(client.post(path, json={"nam": "x"}), 422)["errors"]
    told = next(error for error in errors if error["field"] == "nam")
    assert told["value"] == "x"
    assert told["message"].startswith("There is no key 'nam' here. Did you mean name? There are: name, ")


def test_what_cannot_be_stored_is_shown_without_it(shared: Service) -> None:
    with shared.client() as client:
        error = problem(client.post("/v1/tokens", content=r'{"name": "a\u0000\ud800b"}', headers=JSON), 422)["errors"][
            0
        ]
    assert (error["field"], error["value"]) == ("name", "a�?b")


@pytest.mark.parametrize(
    ("body", "remedy"),
    [
        ('{"name": "t"}'.encode("utf-16"), "Send UTF-8"),
        (b"", "send a JSON object"),
        (b"\xef\xbb\xbf", "send a JSON object"),
    ],
    ids=["utf-16", "empty", "a byte order mark alone"],
)
def test_a_body_that_cannot_be_read_is_answered_with_what_to_send(shared: Service, body: bytes, remedy: str) -> None:
    with shared.client() as client:
        answer = client.post("/v1/tokens", content=body, headers=JSON)
    assert remedy in problem(answer, 400)["detail"]
