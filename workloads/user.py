"""The user's own training, a function or a class, opened in the warm parent and run in a forked child.

Our own modules are put out of sight before the user's are imported: a folder that itself has packages named
`workloads`, `tuner` or `service` finds its own.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from workloads.contract import Parameters, Pause, Probe, ProbeConfig, Stop, Workload

OURS = ("workloads", "tuner", "service")
OUR_FOLDER = str(Path(__file__).resolve().parents[1])
METHODS = ("model", "train_data", "eval_data", "loss", "evaluate")
"""What a class needs for the loop to train it."""

_ours: dict[str, ModuleType] = {}


class TargetError(ImportError):
    """The user's module was imported, but what is to be run is not there or cannot be run; the message says why."""


class RunConfig(Parameters):
    """What the user's function gets: parameters and derived values by name, the rest as attributes.

    `config["lr"]`, `config["micro_batch"]`; `config.seed`, `config.fidelity`, `config.device`, `config.precision`,
    `config.trial`, `config.job_id`, and `config.parameters`, `config.derived` apart.
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
        return super().__missing__(name)


class UserFunction:
    """A workload that calls `function(config, probe)`. It can be paused once it has called `x5tune.checkpoint`."""

    tokens_per_sample: int | None = None

    def __init__(self, function: Callable[[Mapping[str, Any], Probe], object]) -> None:
        self._function = function

    @property
    def can_pause(self) -> bool:
        script = _script()
        return script is not None and bool(script.can_pause())

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        self._function(RunConfig(config), SavingProbe(probe))


class SavingProbe:
    """The probe of a function: a pause saves by what the function gave to `x5tune.checkpoint`, then stops it.

    That the run is paused is said at once: the function may swallow the `Stop` and end in its own way.
    """

    Stop = Stop

    def __init__(self, probe: Any) -> None:
        self._probe = probe

    @property
    def steps(self) -> int:
        steps: int = self._probe.steps
        return steps

    def due(self, step: int) -> bool:
        return bool(self._probe.due(step))

    def report(self, *, step: int, **metrics: float) -> None:
        try:
            self._probe.report(step=step, **metrics)
        except Pause as pause:
            script = _script()
            assert script is not None  # else it would not have been told to pause
            script.save_state()
            self._probe.send({"type": "end", "outcome": "paused", "reason": pause.reason})
            raise


def _script() -> Any:
    """The module behind `x5tune.checkpoint`, where the user's code has imported it; it belongs to their side."""
    return sys.modules.get("x5tune.probing")


def open_target(target: str, folder: str, metric: str, processes: int, hidden: Collection[str]) -> Workload:
    """Import `file.py:name` or `package.module:name`, the user's `folder` first on the path: a function or a class.

    Whatever the import and the class's constructor raise passes through. Raises TargetError where the name is missing,
    is neither of the two, is a class without the methods, or a function that is to have several processes. `metric` is
    what the single number of a class's `evaluate` is called; `hidden` are entries of the path that only we needed.
    """
    where, _, name = target.rpartition(":")
    _ours.update(_taken())
    sys.path[:] = [folder, *(entry for entry in sys.path if entry not in hidden)]
    module = _from_file(Path(folder, where)) if where.endswith(".py") else importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
            raise TargetError(f"{where} has no {name!r}; what can be called there: {', '.join(public) or 'nothing'}")
        found = getattr(found, part)
    if not callable(found):
        raise TargetError(f"{target} is {type(found).__name__}, not a function of (config, probe) and not a class")
    if isinstance(found, type):
        return _open_class(target, found, metric)
    if processes > 1:
        raise TargetError(f"{target} is a function, which runs in one process; resources.processes is {processes}")
    if "torch" in sys.modules:
        importlib.import_module("torch._dynamo")  # a first optimizer step would import it in every fork
    return UserFunction(found)


def _open_class(target: str, found: type, metric: str) -> Workload:
    """The workload around an instance; constructed here, once, so that what it loads is shared by all trials."""
    missing = [name for name in METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise TargetError(f"{target} is a class without {', '.join(missing)}; it needs {', '.join(METHODS)}")
    with _our_packages():
        importlib.import_module("workloads.open").preload()
        wrap = importlib.import_module("workloads.user_class").UserClass
    workload: Workload = wrap(found(), metric)
    return workload


@contextlib.contextmanager
def _our_packages() -> Iterator[None]:
    """Import ours all the same; what is imported keeps working when the user's are in sight again."""
    theirs = _taken()
    sys.modules.update(_ours)
    sys.path.insert(0, OUR_FOLDER)
    try:
        yield
    finally:
        sys.path.remove(OUR_FOLDER)
        _ours.update(_taken())
        sys.modules.update(theirs)


def _taken() -> dict[str, ModuleType]:
    """The modules under our names, taken out of sight."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in OURS}


def _from_file(path: Path) -> ModuleType:
    name = path.stem if path.stem.isidentifier() else "x5tune_user_module"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, so that what it pickles finds it
    spec.loader.exec_module(module)
    return module
