"""Make values storable: what JSON or a text column cannot hold is replaced, never refused.

For what runners and training scripts hand in. Requests are checked instead (`service.body`): a caller is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def clean_text(text: str) -> str:
    """Without NUL (PostgreSQL refuses it) and lone surrogates (UTF-8 has no form for them)."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode("utf-8")


def clean_json(value: Any) -> Any:
    """A value that strict JSON can hold: NaN and infinities become null, unknown objects their text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [clean_json(item) for item in value]
    return clean_text(str(value))
