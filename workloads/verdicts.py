"""What a diagnosis consists of: one verdict a check, with the numbers behind it and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["ok", "skipped", "warning", "problem"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`code` is stable and names the cause; `message` is a sentence. `action` is None where there is nothing to do."""

    code: str
    level: Level
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    action: str | None = None


def ok(code: str, message: str, **evidence: Any) -> Verdict:
    return Verdict(code, "ok", message, evidence)


def skipped(code: str, why: str) -> Verdict:
    return Verdict(code, "skipped", why)


def warning(code: str, message: str, action: str, **evidence: Any) -> Verdict:
    return Verdict(code, "warning", message, evidence, action)


def problem(code: str, message: str, action: str, **evidence: Any) -> Verdict:
    return Verdict(code, "problem", message, evidence, action)


def listed(names: list[str], most: int = 4) -> str:
    """`a, b, c and 9 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
