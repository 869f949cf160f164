"""The OpenAPI description against what the API does."""

from __future__ import annotations

from tests.service.support import Service


def test_every_call_describes_its_problems_under_their_own_media_type(shared: Service) -> None:
    with shared.client("read") as client:
        document = client.get("/openapi.json").json()
        refused = client.get("/v1/jobs/none")
    assert refused.headers["content-type"] == "application/problem+json"
    wanted = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["responses"]["default"]["content"] == wanted
    shapes = document["components"]["schemas"]
    assert set(refused.json()) == set(shapes["Problem"]["properties"])
    assert "value" in shapes["ProblemField"]["properties"]


def test_every_reference_of_the_description_leads_somewhere(shared: Service) -> None:
    with shared.client("read") as client:
        document = client.get("/openapi.json").json()
    found = set(_references(document))
    assert found
    assert {each.removeprefix("#/components/schemas/") for each in found} <= set(document["components"]["schemas"])


def _references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in _references(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in _references(inner)]
    return []
