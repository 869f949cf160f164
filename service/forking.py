"""A job's specification with changes; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_NAME_CHARS = 200
SUFFIX = " (fork)"


def changed(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`spec` with `changes` merged in as RFC 7396 says: null takes a key out, mappings are merged, the rest replaced.

    A workload, and a searched parameter that becomes one of another kind (choices instead of a range), are replaced
    whole. Without a name of its own the fork is called after its original.
    """
    merged = {**_merged(spec, {key: value for key, value in changes.items() if key != "workload"})}
    if "workload" in changes:
        merged["workload"] = changes["workload"]
    if "name" not in changes and isinstance(spec.get("name"), str):
        name = str(spec["name"])
        merged["name"] = name if name.endswith(SUFFIX) else name[: MAX_NAME_CHARS - len(SUFFIX)] + SUFFIX
    return merged


def _merged(before: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(before)
    for key, value in changes.items():
        there = found.get(key)
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(there, Mapping) and ("choices" in value) == ("choices" in there):
            found[key] = _merged(there, value)
        else:
            found[key] = value
    return found
