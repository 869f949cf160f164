"""The user's own training function, opened in the warm parent and run in a forked child.

Our own modules are put out of sight before the user's are imported: a folder that itself has packages named
`workloads`, `tuner` or `service` finds its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from workloads.contract import Probe, ProbeConfig

OURS = ("workloads", "tuner", "service")


class TargetError(ImportError):
    """The user's module was imported, but the function is not there or is no function; the message says what is."""


class RunConfig(dict[str, Any]):
    """What the user's function gets: parameters and derived values by name, the rest as attributes.

    `config["lr"]`, `config["micro_batch"]`; `config.seed`, `config.fidelity`, `config.device`, `config.precision`,
    `config.trial`, `config.job_id`, `config.resume_dir`, and `config.parameters`, `config.derived` apart.
    """

    def __init__(self, config: ProbeConfig) -> None:
        super().__init__({**config.derived, **config.parameters})
        self._config = config

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._config, name)

    def __missing__(self, name: str) -> Any:
        if name in {field.name for field in fields(self._config)}:
            return getattr(self._config, name)
        raise KeyError(f"{name!r} is no parameter of this trial; there are: {', '.join(sorted(self))}")


class UserFunction:
    """A workload that calls `function(config, probe)`."""

    tokens_per_sample: int | None = None

    def __init__(self, function: Callable[[Mapping[str, Any], Probe], object]) -> None:
        self._function = function

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        self._function(RunConfig(config), probe)


def open_function(target: str, folder: str) -> UserFunction:
    """Import `file.py:function` or `package.module:function`, the user's `folder` first on the path.

    Whatever the import raises passes through. Raises TargetError where the name is missing or is not callable.
    """
    where, _, name = target.rpartition(":")
    _hide_ours()
    sys.path.insert(0, folder)
    module = _from_file(Path(folder, where)) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            raise TargetError(f"{where} has no {name!r}; what can be called there: {', '.join(public) or 'nothing'}")
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(f"{target} is {type(found).__name__}, not a function of (config, probe)")
    if isinstance(found, type):
        raise TargetError(f"{target} is a class; classes for which x5tune owns the loop are not available yet")
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # a first optimizer step would import it in every fork
    return UserFunction(found)


def _hide_ours() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    ours = {str(Path(__file__).resolve().parents[1])}
    sys.path[:] = [entry for entry in sys.path if entry not in ours]


def _from_file(path: Path) -> ModuleType:
    name = path.stem if path.stem.isidentifier() else "x5tune_user_module"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that what it pickles finds it
    spec.loader.exec_module(module)
    return module
