"""The built-in workloads, from their manifests."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter

from service import schemas
from service.auth import CanRead
from service.clean import clean_json
from service.errors import not_found
from workloads.catalog import MANIFESTS
from workloads.manifest import Manifest

router = APIRouter(prefix="/workloads", tags=["workloads"], dependencies=[CanRead])


@router.get("", response_model=schemas.Page[dict[str, Any]])
def list_workloads() -> schemas.Page[dict[str, Any]]:
    """Every built-in workload; always one page."""
    return schemas.Page[dict[str, Any]](items=[_view(each) for each in MANIFESTS.values()], next=None)


@router.get("/{name}", response_model=dict[str, Any])
def show(name: str) -> dict[str, Any]:
    if name not in MANIFESTS:
        raise not_found("built-in workload", name)
    return _view(MANIFESTS[name])


def _view(manifest: Manifest) -> dict[str, Any]:
    view: dict[str, Any] = clean_json(asdict(manifest))
    del view["entry"]  # where the code is: of no use outside
    return view
