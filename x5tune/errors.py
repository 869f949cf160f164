"""What can go wrong between a caller and a service."""

from __future__ import annotations

from x5tune.shapes import Problem, ProblemField


class X5tuneError(Exception):
    """Base of this package's errors; the message is a sentence for people."""


class ConfigurationError(X5tuneError):
    """What this machine says about the service cannot be used: a bad address, a broken client.json."""


class UsageError(X5tuneError):
    """What was typed cannot be used: options that do not go together, a word that is none of those there are."""


class Unreachable(X5tuneError):  # noqa: N818 - the word that users see
    """Nothing that speaks x5tune answers at `url`."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"Cannot reach the x5tune service at {url}: {reason}")
        self.url = url
        self.reason = reason


class WaitTimeout(X5tuneError, TimeoutError):  # noqa: N818 - the word that users see
    """The job had not ended in time; it goes on."""


class ApiError(X5tuneError):
    """The service refused. `problem` is its answer (RFC 9457), `status` the HTTP status."""

    def __init__(self, problem: Problem, message: str | None = None) -> None:
        super().__init__(message or problem["detail"] or problem["title"])
        self.problem = problem

    @property
    def status(self) -> int:
        return self.problem["status"]

    @property
    def errors(self) -> list[ProblemField]:
        """What is wrong, field by field; empty where the refusal is about the whole."""
        return self.problem["errors"]


class Unauthorised(ApiError):  # noqa: N818 - the word that users see
    """No token, a bad one (401), or one whose scope does not reach so far (403)."""


class NotFound(ApiError):  # noqa: N818 - the word that users see
    """There is no such thing."""


class InvalidRequest(ApiError):  # noqa: N818 - the word that users see
    """What was sent cannot be understood or used."""


class InvalidSpec(InvalidRequest):
    """The job specification cannot be run; `errors` names every field."""
