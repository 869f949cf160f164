"""The built-in workloads by name, readable without torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

from workloads.manifest import Manifest
from workloads.manifests import ALL

MANIFESTS: Mapping[str, Manifest] = MappingProxyType({manifest.name: manifest for manifest in ALL})


class UnknownWorkload(KeyError):  # noqa: N818 - a lookup that found nothing, named like its cause
    """No built-in has this name; `valid` lists those that exist, `nearest` is the likely meaning or None."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.valid = tuple(MANIFESTS)
        self.nearest = next(iter(difflib.get_close_matches(name, self.valid, n=1, cutoff=0.5)), None)

    def __str__(self) -> str:
        hint = f" Did you mean {self.nearest}?" if self.nearest else ""
        return f"There is no built-in workload {self.name!r}; there are {', '.join(self.valid)}.{hint}"


def manifest(name: str) -> Manifest:
    """The manifest of a built-in workload; raises `UnknownWorkload`."""
    try:
        return MANIFESTS[name]
    except KeyError:
        raise UnknownWorkload(name) from None
