"""x5tune from Python: `config`, `report`, `checkpoint` and `Stop` for a training script, `Client` to talk to a service,
`FreezeThawSampler` and `FreezeThawPruner` for a plain Optuna study (these need `x5tune[worker]`).

Importing this costs nothing until a name is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.optuna_search import FreezeThawPruner, FreezeThawSampler
    from x5tune.client import Client
    from x5tune.errors import ApiError, InvalidSpec, Unauthorised, Unreachable, WaitTimeout, X5tuneError
    from x5tune.probing import Stop, checkpoint, config, report

__all__ = [
    "ApiError",
    "Client",
    "FreezeThawPruner",
    "FreezeThawSampler",
    "InvalidSpec",
    "Stop",
    "Unauthorised",
    "Unreachable",
    "WaitTimeout",
    "X5tuneError",
    "checkpoint",
    "config",
    "report",
]

_HOMES = {
    "Client": "x5tune.client",
    **dict.fromkeys(("FreezeThawPruner", "FreezeThawSampler"), "tuner.optuna_search"),
    **dict.fromkeys(("Stop", "checkpoint", "config", "report"), "x5tune.probing"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'x5tune' has no attribute {name!r}")
    found = getattr(import_module(_HOMES.get(name, "x5tune.errors")), name)
    globals()[name] = found  # so that a training loop pays for the search once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
