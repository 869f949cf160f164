"""What can go wrong in the service: each error carries its HTTP status, and one handler renders them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

MAX_ERRORS = 30
MAX_FIELD = 200


class ServiceError(Exception):
    """Base of the service's errors."""


class SettingError(ServiceError):
    """A setting that cannot be used: which variable, the value, and the remedy."""

    def __init__(self, variable: str, value: str, remedy: str) -> None:
        super().__init__(f"{variable}={value!r}: {remedy}")
        self.variable = variable
        self.value = value
        self.remedy = remedy


class PortInUseError(ServiceError):
    """The address to listen on belongs to another process."""


class AlreadyServingError(ServiceError):
    """Another `serve` runs on the same home folder."""


class StartError(ServiceError):
    """The service could not be brought up; the message says which part and why."""


class NotMigratedError(ServiceError):
    """The database's schema is not the one that this version needs."""


class OutsideRootsError(ServiceError):
    """The code of a job lies where this service runs none."""


class LeaseLostError(ServiceError):
    """A runner's write found that the job belongs to somebody else by now."""


class HandBack(ServiceError):  # noqa: N818 - a signal to the study, not an error
    """Raised through a study when its runner was told to stop: the job goes back to the queue."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One thing wrong with a request. `field` is dotted (`search.lr.low`), empty for the whole body."""

    field: str
    value: Any
    message: str


@dataclass(eq=False)
class ProblemError(ServiceError):
    """An answer other than success, rendered as RFC 9457 `application/problem+json`."""

    status: int
    kind: str
    title: str
    detail: str
    errors: Sequence[FieldError] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.status} {self.title}: {self.detail}"


def not_found(what: str, key: object) -> ProblemError:
    return ProblemError(404, "not-found", "Not found", f"There is no {what} {str(key)[:200]!r}.")


def conflict(detail: str) -> ProblemError:
    return ProblemError(409, "conflict", "Conflict", detail)


def invalid(found: Sequence[FieldError], detail: str | None = None) -> ProblemError:
    """A 422 with the first of what was found, and how much more there is: no answer as large as a request."""
    errors = [replace(error, field=_short(error.field)) for error in found[:MAX_ERRORS]]
    if len(found) > MAX_ERRORS:
        errors.append(FieldError("", None, f"and {len(found) - MAX_ERRORS} more"))
    summary = "; ".join(f"{e.field}: {e.message}".removeprefix(": ").removesuffix(".") for e in errors)
    return ProblemError(422, "invalid", "Invalid request", detail or summary, errors)


def _short(name: str) -> str:
    return name if len(name) <= MAX_FIELD else name[: MAX_FIELD - 1] + "…"


def malformed(detail: str) -> ProblemError:
    return ProblemError(400, "malformed", "Malformed body", detail, (FieldError("", None, detail),))


def unsupported_media_type(given: str, accepted: Sequence[str]) -> ProblemError:
    return _unsupported(f"The body is {given[:100] or 'of no stated type'}; send {' or '.join(accepted)}.")


def unsupported_encoding(given: str) -> ProblemError:
    return _unsupported(f"The body is compressed (Content-Encoding: {given[:50]}); send it as it is.")


def _unsupported(detail: str) -> ProblemError:
    return ProblemError(415, "unsupported-media-type", "Unsupported media type", detail)


def too_large(limit_bytes: int) -> ProblemError:
    return ProblemError(413, "too-large", "Body too large", f"A request body holds at most {limit_bytes} bytes.")


def unauthorised(detail: str) -> ProblemError:
    headers = {"WWW-Authenticate": 'Bearer realm="x5tune"'}
    return ProblemError(401, "unauthorised", "Unauthorised", detail, headers=headers)


def forbidden(detail: str) -> ProblemError:
    return ProblemError(403, "forbidden", "Forbidden", detail)


def too_many(detail: str, retry_after_s: int) -> ProblemError:
    return ProblemError(429, "too-many", "Too many requests", detail, headers={"Retry-After": str(retry_after_s)})
