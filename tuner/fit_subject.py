"""What phase `fit` measures of a job: which configuration, on which sizes, under which limit; pure."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tuner.command import placeholders
from tuner.device import Device
from tuner.fit_plan import GPU, HOST, HOST_MAPPED, FitPlan, Overhead, sizes_for
from tuner.jobspec import Choices, Fixed, Parameter, Range, ResolvedJob
from tuner.spec_class import definition
from workloads.catalog import manifest

OPTIMIZERS_BY_STATE = ("sgd", "adafactor", "adamw", "lamb")
WEIGHTLESS = frozenset(
    ("lr", "batch_size", "weight_decay", "loss_scale", "grad_clip", "warmup", "beta1", "beta2", "eps", "lr_min")
)
"""Parameters of the loop whose value does not change how much memory it needs."""
MAX_SOURCES = 500
HARMLESS_LR = 1e-6  # a proof is about memory and must not diverge


@dataclass(frozen=True, slots=True)
class Subject:
    """`parameters` is the heaviest configuration; `largest_batch` the largest share of one process.

    `is_ours`: our loop trains it, so it can be predicted, and proven from inside. `can_cut`: it takes its batch in
    micro-batches; what cannot is proven with whole batches, of those that are searched.
    """

    parameters: Mapping[str, Any]
    sizes: tuple[int, ...]
    largest_batch: int
    limit_bytes: int
    cap_bytes: int
    fingerprint: str
    overhead: Overhead
    is_ours: bool = True
    can_cut: bool = True

    def plan(self) -> FitPlan:
        return FitPlan(self.sizes, self.limit_bytes, self.cap_bytes, self.overhead)

    def accumulation(self, size: int) -> int:
        """With more than one micro-batch the gradients of the first are there when the second is computed."""
        return 2 if self.can_cut and size < self.largest_batch else 1


def subject_of(job: ResolvedJob, device: Device) -> Subject | None:
    """None where there is nothing to fit: no limit, no batch size, or one that is fixed for code that cannot cut it.

    Nor can code be proven from outside before it is known how long it runs. All is of one process.
    """
    limit = limit_bytes(job, device)
    batch = job.space.get("batch_size")
    if limit is None or batch is None:
        return None
    is_ours = is_our_loop(job)
    can_cut = is_ours or knows_micro_batch(job)
    if (not is_ours and not job.fidelity.is_known) or (not can_cut and (isinstance(batch, Fixed) or job.code is None)):
        return None
    shares = [int(size) // job.resources.processes for size in _values(batch)]
    own = [int(job.baseline["batch_size"]) // job.resources.processes] if can_cut else []
    largest = max([*shares, *own])
    sizes: Sequence[int]
    if isinstance(batch, Range):
        sizes = range(1 if can_cut else max(1, min(shares)), largest + 1)
    else:
        sizes = sizes_for([*shares, *own]) if can_cut else sorted(set(shares))
    parameters = heaviest(job.space, job.baseline)
    return Subject(
        parameters={**parameters, "lr": HARMLESS_LR} if is_ours else parameters,
        is_ours=is_ours,
        can_cut=can_cut,
        sizes=tuple(sizes),
        largest_batch=largest,
        limit_bytes=limit,
        cap_bytes=int(limit * job.limits.memory_fraction),
        fingerprint=fingerprint(job, parameters),
        overhead=overhead(job, device),
    )


def overhead(job: ResolvedJob, device: Device) -> Overhead:
    """What the allocator that the job's tensors come from takes on top of them."""
    if device.type != "cpu":
        return GPU
    return HOST_MAPPED if "MALLOC_MMAP_THRESHOLD_" in job.environment else HOST


def is_our_loop(job: ResolvedJob) -> bool:
    """Whether x5tune trains the workload: a built-in with a model, or a class, as far as its source shows."""
    if job.code is None:
        return manifest(job.workload).needs_torch
    found = definition(job.code)
    return found is not None and isinstance(found[0], ast.ClassDef)


def knows_micro_batch(job: ResolvedJob) -> bool:
    """Whether the user's own code can be told how to cut its batch: a command by {micro_batch}, a function by name."""
    if job.code is None:
        return False
    if job.code.target is None:
        return any("micro_batch" in placeholders(argument) for argument in job.code.argv)
    found = definition(job.code)
    return found is not None and "micro_batch" in ast.dump(found[1])


def limit_bytes(job: ResolvedJob, device: Device) -> int | None:
    """The memory that a probe may take: of its GPU all that there is, on the host what the job says."""
    if device.type == "cuda":
        return device.memory_bytes
    return None if job.limits.host_memory_mib is None else int(job.limits.host_memory_mib * (1 << 20))


def heaviest(space: Mapping[str, Parameter], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of the space that needs most memory, as far as names and numbers tell.

    The optimizer with most state, every other number that may matter at its largest, the rest as in the baseline.
    """
    found = {name: p.value for name, p in space.items() if isinstance(p, Fixed)} | dict(baseline)
    for name, parameter in space.items():
        if name in WEIGHTLESS or isinstance(parameter, Fixed):
            continue
        values = _values(parameter)
        if name == "optimizer":
            found[name] = max(values, key=OPTIMIZERS_BY_STATE.index)
        elif all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            found[name] = max(values)
    return found


def fingerprint(job: ResolvedJob, parameters: Mapping[str, Any]) -> str:
    """Equal for jobs that need the same memory for the same micro-batch: the workload, torch, and what weighs."""
    weighs = {name: value for name, value in sorted(parameters.items()) if name not in WEIGHTLESS}
    code = None
    if job.code is not None:  # a copy is another folder each time
        code = [None if job.snapshot else job.code.folder, source_hash(Path(job.code.folder))]
    subject = [job.workload, code, weighs, job.environment, job.resources.processes, job.resources.cpus, _torch()]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def source_hash(folder: Path) -> str:
    """Of the Python files in a folder, names and contents; the first `MAX_SOURCES` of them."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py"))[:MAX_SOURCES]:
        digest.update(str(path.relative_to(folder)).encode())
        with contextlib.suppress(OSError):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _torch() -> str:
    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def _values(parameter: Parameter) -> tuple[Any, ...]:
    if isinstance(parameter, Fixed):
        return (parameter.value,)
    if isinstance(parameter, Choices):
        return parameter.values
    return (int(parameter.low), int(parameter.high)) if parameter.integer else (parameter.low, parameter.high)
