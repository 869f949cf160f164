"""The OpenAPI description as FastAPI makes it, corrected where it would tell callers something that is not so."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service import schemas
from service.problems import MEDIA_TYPE

REF = "#/components/schemas/{model}"


class DescribedApp(FastAPI):
    """A FastAPI application that describes its problems as what they are."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            description = super().openapi()
            known = description.setdefault("components", {}).setdefault("schemas", {})
            for model in (schemas.Problem, schemas.ProblemField, schemas.EventOut):
                shape = model.model_json_schema(ref_template=REF, mode="serialization")
                shape.pop("$defs", None)
                known[model.__name__] = shape
            for unused in ("HTTPValidationError", "ValidationError"):
                known.pop(unused, None)
            for operations in description["paths"].values():
                for operation in operations.values():
                    _problems_as_they_come(operation["responses"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def _problems_as_they_come(responses: dict[str, Any]) -> None:
    """FastAPI gives every answer of a route the media type of its success; a problem always has its own."""
    content = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    responses.pop("422", None)  # FastAPI's own shape, which no answer has
    responses["default"] = {"description": "A problem (RFC 9457).", "content": content}
