"""From a specification as given to one that can be stored: the tuner's rules, in the words of HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from service.body import JSON_TYPES, YAML_TYPES, RawBody, checked, parse_json, text_of
from service.clean import clean_json
from service.errors import FieldError, invalid, malformed, unsupported_media_type
from tuner.spec import SpecError, resolve
from tuner.spec_text import load_text


@dataclass(frozen=True, slots=True)
class Submission:
    """A valid specification: as given, resolved, and what is said about it. `workload` is the name to list it by.

    `snapshot_of` is the folder that is to be copied, None where none is.
    """

    spec: dict[str, Any]
    resolved: dict[str, Any]
    estimate: dict[str, Any]
    warnings: list[dict[str, Any]]
    name: str
    workload: str
    priority: int
    total: int | None
    snapshot_of: Path | None = None
    webhook: str | None = None
    folder: str | None = None


def read_spec(body: RawBody) -> dict[str, Any]:
    """The specification in a JSON or YAML body."""
    if body.media_type in YAML_TYPES:
        return checked(_load_yaml(text_of(body)))
    if body.media_type in JSON_TYPES:
        return parse_json(body)
    raise unsupported_media_type(body.media_type, (*JSON_TYPES, YAML_TYPES[0]))


def understand(spec: Mapping[str, Any]) -> Submission:
    """Validate and resolve; raises a 422 that names every field that is wrong."""
    _require_absolute_folder(spec)
    try:
        resolution = resolve(spec)
    except SpecError as error:
        raise invalid([FieldError(p.field, p.value, p.message) for p in error.problems]) from error
    job = resolution.job
    return Submission(
        spec=dict(spec),
        resolved=clean_json(job.to_json()),
        estimate=clean_json(resolution.estimate.to_json()),
        warnings=[{"field": warning.field, "message": warning.message} for warning in resolution.warnings],
        name=job.name,
        workload=job.workload,
        priority=job.priority,
        total=job.budget.trials,
        snapshot_of=Path(job.code.folder) if job.snapshot and job.code else None,
        webhook=job.webhook,
        folder=job.code.folder if job.code else None,
    )


def _require_absolute_folder(spec: Mapping[str, Any]) -> None:
    workload = spec.get("workload")
    folder = workload.get("folder") if isinstance(workload, Mapping) else None
    if isinstance(folder, str) and not PurePath(folder).is_absolute():
        message = "must be an absolute path: a relative one would depend on where the service runs"
        raise invalid([FieldError("workload.folder", folder, message)])


def _load_yaml(text: str) -> Any:
    try:
        return load_text(text, "the request body")
    except SpecError as error:
        problems = [FieldError(p.field, p.value, p.message) for p in error.problems]
        if any(problem.field for problem in problems):
            raise invalid(problems) from error
        raise malformed("; ".join(problem.message for problem in problems)) from error
