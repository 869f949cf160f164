"""The resolved job specification: plain frozen values, every default filled in, JSON in and out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tuner.command import command_label
from workloads.contract import Fidelity
from workloads.manifest import Direction

OWN_SEARCH = "freeze_thaw"
"""The name of our own search, as `sampler` and as `pruner`: it is both at once."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A parameter exists only in configurations where `parent` exists and has one of `values`."""

    parent: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """A numeric range, both ends included. `or_zero` (log ranges only) also offers exactly 0."""

    low: float
    high: float
    log: bool = False
    integer: bool = False
    or_zero: bool = False
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Choices:
    """One of these JSON values: numbers, text, null, booleans or lists, in the order given."""

    values: tuple[Any, ...]
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class Fixed:
    """Not searched: always this value."""

    value: Any


Parameter = Range | Choices | Fixed


@dataclass(frozen=True, slots=True)
class Objective:
    """The metric that is compared and which way is better."""

    metric: str
    direction: Direction


@dataclass(frozen=True, slots=True)
class Cost:
    """A price cap: `amount` in the currency of `per_device_hour`."""

    amount: float
    per_device_hour: float


@dataclass(frozen=True, slots=True)
class Budget:
    """Caps on the whole job; None is no cap. The first one reached ends the search.

    `trials` counts search trials only. Every other cap includes what confirmation needs, which is reserved first.
    `full_runs` is in units of one run to the full horizon, `seconds` wall-clock.
    """

    trials: int | None
    full_runs: float | None = None
    seconds: float | None = None
    device_hours: float | None = None
    cost: Cost | None = None
    energy_kwh: float | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """`probe_seconds` ends a probe as `timed_out`; so does `silence_seconds` without a report.

    `host_memory_mib` is what each process of a probe may add to its interpreter as it starts (a command: all of it),
    `disk_mib` what a probe may keep in its own folder; None is no limit. Of the host memory, or of the GPU's,
    `memory_fraction` may be used at the peak by what is recommended. The checkpoints of a job's paused trials may take
    up `checkpoints_mib` together; 0: nothing is paused. A batch that takes more than `max_accumulation` micro-batches a
    step, of those that fit, is left out of the search. `checkpointing`: activations are computed again instead of kept,
    `auto` where nothing fits otherwise.
    """

    memory_fraction: float = 0.92
    host_memory_mib: float | None = None
    disk_mib: float | None = 16384.0
    probe_seconds: float | None = None
    silence_seconds: float = 300.0
    max_failures: int = 5
    checkpoints_mib: float = 65536.0
    max_accumulation: int | None = None
    checkpointing: Literal["auto", "always", "never"] = "auto"


@dataclass(frozen=True, slots=True)
class Confirm:
    """`top` finalists and the baseline on `seeds` fresh seeds each; either 0: no confirmation.

    `always`: the baseline also where there is no finalist, so that it is known how well it does today.
    """

    top: int = 3
    seeds: int = 5
    always: bool = False

    @property
    def runs(self) -> int:
        """How many full runs confirmation takes at least, the baseline's included."""
        return (self.top + 1) * self.seeds if self.top and self.seeds else 0


@dataclass(frozen=True, slots=True)
class Resources:
    """Per trial. `gpus` is None while `auto` is undecided; the runner decides it."""

    cpus: float = 1.0
    gpus: float | None = None
    processes: int = 1


@dataclass(frozen=True, slots=True)
class UserCode:
    """The user's own training, in the absolute `folder`: a callable, or a command with {placeholders}.

    `target` is `file.py:function` or `package.module:function`, the file relative to the folder; None for a command.
    `argv` is filled by `tuner.command.fill`; empty for a callable.
    """

    folder: str
    target: str | None = None
    argv: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What people see instead: `train.py:train`, or the program and its script, `python train.py`."""
        return self.target if self.target is not None else command_label(self.argv)


@dataclass(frozen=True, slots=True)
class MetricSource:
    """Where the metrics of an unchanged script are: one of the four is given.

    `stdout` is a regular expression searched in every line of output, with named groups: those of PROGRESS for how far
    the run is, and either one for each metric (`group_name`) or `name` and `value`. `jsonl` and `csv` name a file,
    `tensorboard` a folder, each within the run's own folder.
    """

    stdout: str | None = None
    jsonl: str | None = None
    csv: str | None = None
    tensorboard: str | None = None

    @property
    def path(self) -> str | None:
        """The file or folder, where there is one."""
        return next((path for path in (self.jsonl, self.csv, self.tensorboard) if path is not None), None)

    def to_json(self) -> dict[str, str]:
        return {key: value for key, value in asdict(self).items() if value is not None}

    @staticmethod
    def group_name(metric: str) -> str:
        """The regular expression's group for a metric: `val/acc@5` is the group `val_acc_5`, `5nn` is `_5nn`."""
        name = re.sub(r"[^A-Za-z0-9_]", "_", metric)
        return f"_{name}" if name[:1].isdigit() else name


@dataclass(frozen=True, slots=True)
class ResolvedJob:
    """A job as the tuner runs it. `precision` stays "auto" until the runner knows its device.

    `workload` is the name of a built-in, or the label of `code`, which is None for a built-in. `metrics` is None where
    the script reports by itself. `snapshot`: whoever queues the job copies the folder of `code` first.
    """

    name: str
    workload: str
    objective: Objective
    space: Mapping[str, Parameter]
    baseline: Mapping[str, Any]
    fidelity: Fidelity
    budget: Budget
    limits: Limits
    precision: Literal["auto", "fp32", "bf16", "fp16"]
    pruner: str
    sampler: str
    confirm: Confirm
    resources: Resources
    environment: Mapping[str, str] = field(default_factory=dict)
    history: bool = True
    range_test: bool = True
    activations: bool = False
    priority: int = 0
    seed: int = 0
    code: UserCode | None = None
    metrics: MetricSource | None = None
    snapshot: bool = False
    webhook: str | None = None

    def to_json(self) -> dict[str, Any]:
        """This job in the notation of the job specification, with nothing left out: it can be submitted again."""
        return {
            "name": self.name,
            "workload": self.workload if self.code is None else _code_to_json(self.code),
            "objective": asdict(self.objective),
            "search": {name: _parameter_to_json(parameter) for name, parameter in self.space.items()},
            "baseline": dict(self.baseline),
            "fidelity": self.fidelity.to_json(),
            "budget": asdict(self.budget),
            "limits": asdict(self.limits),
            "precision": self.precision,
            "pruner": self.pruner,
            "sampler": self.sampler,
            "confirm": asdict(self.confirm),
            "resources": {
                **asdict(self.resources),
                "gpus": "auto" if self.resources.gpus is None else self.resources.gpus,
            },
            "environment": dict(self.environment),
            "metrics": None if self.metrics is None else self.metrics.to_json(),
            "snapshot": self.snapshot,
            "history": self.history,
            "range_test": self.range_test,
            "health": {"activations": self.activations},
            "priority": self.priority,
            "seed": self.seed,
            "webhook": self.webhook,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ResolvedJob:
        """The job that `to_json` wrote. Trusts its input: what users write goes through `tuner.spec.resolve`."""
        budget, resources = dict(data["budget"]), dict(data["resources"])
        cost = budget.pop("cost", None)
        gpus = resources.pop("gpus", None)
        code = None if isinstance(data["workload"], str) else _code_from_json(data["workload"])
        metrics = data.get("metrics")
        return ResolvedJob(
            name=data["name"],
            workload=data["workload"] if code is None else code.label,
            objective=Objective(**data["objective"]),
            space={name: _parameter_from_json(parameter) for name, parameter in data["search"].items()},
            baseline=dict(data["baseline"]),
            fidelity=Fidelity.from_json(data["fidelity"]),
            budget=Budget(**budget, cost=None if cost is None else Cost(**cost)),
            limits=Limits(**data["limits"]),
            precision=data["precision"],
            pruner=data["pruner"],
            sampler=data["sampler"],
            confirm=Confirm(**data["confirm"]),
            resources=Resources(**resources, gpus=None if gpus == "auto" else gpus),
            environment=dict(data["environment"]),
            history=data["history"],
            range_test=data.get("range_test", False),  # jobs of earlier versions go on without
            activations=data.get("health", {}).get("activations", False),
            priority=data["priority"],
            seed=data["seed"],
            code=code,
            metrics=None if metrics is None else MetricSource(**metrics),
            snapshot=data.get("snapshot", False),
            webhook=data.get("webhook"),
        )

    @property
    def searched(self) -> dict[str, Range | Choices]:
        """The parameters that are not fixed."""
        return {name: p for name, p in self.space.items() if not isinstance(p, Fixed)}


def _code_to_json(code: UserCode) -> dict[str, Any]:
    what = {"command": list(code.argv)} if code.target is None else {"python": code.target}
    return {**what, "folder": code.folder}


def _code_from_json(written: Mapping[str, Any]) -> UserCode:
    return UserCode(written["folder"], written.get("python"), tuple(written.get("command") or ()))


def _parameter_to_json(parameter: Parameter) -> Any:
    if isinstance(parameter, Fixed):
        return parameter.value
    when = {} if parameter.when is None else {"when": {parameter.when.parent: list(parameter.when.values)}}
    if isinstance(parameter, Choices):
        return {"choices": list(parameter.values), **when}
    written = asdict(parameter)
    written["int"] = written.pop("integer")
    del written["when"]
    return {**written, **when}


def _parameter_from_json(written: Any) -> Parameter:
    """A mapping with `choices` or `low` is a search, everything else the fixed value itself."""
    if not isinstance(written, Mapping) or not ("choices" in written or "low" in written):
        return Fixed(written)
    when = next((Condition(parent, tuple(values)) for parent, values in written.get("when", {}).items()), None)
    if "choices" in written:
        return Choices(tuple(written["choices"]), when)
    return Range(written["low"], written["high"], written["log"], written["int"], written["or_zero"], when)
