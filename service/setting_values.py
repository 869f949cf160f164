"""Reading one variable each; a value that cannot be used is refused with its name and a remedy."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from service.errors import SettingError

PREFIX = "X5TUNE_"
MIN_SECRET_CHARS = 16
N = TypeVar("N", int, float)


def secret(env: Mapping[str, str]) -> str | None:
    name = PREFIX + "WEBHOOK_SECRET"
    given = (env.get(name) or "").strip()
    if given and len(given) < MIN_SECRET_CHARS:
        remedy = f"a secret has at least {MIN_SECRET_CHARS} characters; make one with: openssl rand -hex 32"
        raise SettingError(name, "(not shown)", remedy)
    return given or None


def allowed(env: Mapping[str, str]) -> tuple[str, ...]:
    name = PREFIX + "WEBHOOK_ALLOW"
    found = tuple(part.strip().lower() for part in (env.get(name) or "").split(",") if part.strip())
    for part in found:
        if "/" in part:
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise SettingError(name, part, "not a network; write 10.0.0.0/8, or a host's name") from error
    return found


def flag(env: Mapping[str, str], name: str) -> bool:
    text = (env.get(PREFIX + name) or "").strip().lower()
    if text not in ("", "0", "1", "false", "true", "no", "yes"):
        raise SettingError(PREFIX + name, text, "expected 1 or 0")
    return text in ("1", "true", "yes")


def roots(env: Mapping[str, str]) -> tuple[Path, ...] | None:
    """The folders, links followed, so that they can be compared; None where the variable is not set."""
    name = PREFIX + "ROOTS"
    given = env.get(name)
    if not given or not given.strip():
        return None
    found = []
    for part in filter(None, (part.strip() for part in given.split(os.pathsep))):
        path = Path(part)
        if not path.is_absolute() or not path.is_dir():
            raise SettingError(
                name, part, f"not an absolute path of a folder; write several with {os.pathsep!r} between"
            )
        found.append(path.resolve())
    return tuple(found)


def number(env: Mapping[str, str], name: str, default: N, kind: Callable[[str], N], *, low: N, high: N) -> N:
    text = env.get(PREFIX + name)
    if text is None or not text.strip():
        return default
    try:
        number = kind(text)
        is_valid = low <= number <= high
    except ValueError:
        is_valid = False
    if not is_valid:
        raise SettingError(PREFIX + name, text, f"expected a number from {low} to {high}; the default is {default}")
    return number
