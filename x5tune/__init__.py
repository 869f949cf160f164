"""x5tune from Python: `Client` talks to a service. Importing this costs nothing until a name is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from x5tune.client import Client
    from x5tune.errors import ApiError, InvalidSpec, Unauthorised, Unreachable, WaitTimeout, X5tuneError

__all__ = ["ApiError", "Client", "InvalidSpec", "Unauthorised", "Unreachable", "WaitTimeout", "X5tuneError"]

_HOMES = {"Client": "x5tune.client"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'x5tune' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "x5tune.errors")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
