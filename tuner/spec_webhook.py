"""Whom to tell when a job has ended: an address, whose form is checked here; whether it may be told, as it is."""

from __future__ import annotations

from urllib.parse import urlsplit

from tuner.spec_section import Section

MAX_URL_CHARS = 2000


def read_webhook(top: Section, key: str = "webhook") -> str | None:
    """The address under `key`; None when it is null or wrong."""
    if not top.has(key):
        return None
    value = top.get(key)
    problem = url_problem(value)
    if problem:
        top.refuse(key, problem)
        return None
    return str(value)


def url_problem(value: object) -> str | None:
    """What is wrong with a webhook's address, None when nothing is."""
    example = "write one such as https://hooks.example.org/x5tune."
    if not isinstance(value, str):
        return f"must be an address; {example}"
    if len(value) > MAX_URL_CHARS or not value.isascii() or any(character <= " " for character in value):
        return f"must be an address of at most {MAX_URL_CHARS} plain characters; {example}"
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError as error:
        return f"is no address: {error}; {example}"
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        return f"must begin with https:// or http:// and name a host; {example}"
    if parts.username is not None or parts.password is not None:
        return "must not hold a user name or a password: everybody who can read the job would see them."
    return None
