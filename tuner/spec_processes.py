"""Several processes a trial: whether the workload can, and whether they can share every batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.jobspec import Choices, Parameter, Range, UserCode
from tuner.spec_class import is_function
from tuner.spec_numbers import plain
from tuner.spec_problems import Notes, quoted
from tuner.torchrun import interpreter_at, starts_its_processes, takes_processes
from workloads.manifest import Manifest

_MANY = 8


def check_processes(
    notes: Notes,
    processes: int,
    workload: Manifest | UserCode,
    space: Mapping[str, Parameter],
    baseline: Mapping[str, Any],
) -> None:
    """Refuse what cannot run as `processes` processes: batch_size = micro_batch x accumulation x processes."""
    if processes == 1:
        return
    if isinstance(workload, Manifest):
        if not workload.needs_torch:
            notes.refuse("resources.processes", processes, f"{workload.name} runs in one process; use 1.")
    elif workload.argv:
        _check_command(notes, processes, workload)
    elif is_function(workload):
        remedy = "use 1, give a class, for which x5tune owns the loop, or a command, which runs under torchrun"
        notes.refuse(
            "resources.processes", processes, f"{workload.label} is a function and runs in one process: {remedy}."
        )
    if "batch_size" in space:
        _check_batch(notes, processes, space["batch_size"], baseline["batch_size"])


def _check_command(notes: Notes, processes: int, code: UserCode) -> None:
    argv = code.argv
    if starts_its_processes(argv):
        if not takes_processes(argv):
            message = (
                f"{quoted(argv[0])} starts the processes itself, so {{processes}} belongs into it (here {processes})"
            )
            notes.warn("workload.command", f"{message}, such as --nproc-per-node={{processes}}.")
    elif interpreter_at(argv) is None:
        why = f"{quoted(argv[0])} is no Python interpreter that torchrun could start {processes} times"
        remedy = "start it with python, or have it start them itself and pass on {processes}"
        notes.refuse("resources.processes", processes, f"{why}: {remedy}.")


def _check_batch(notes: Notes, processes: int, parameter: Parameter, start: Any) -> None:
    product = "batch_size = micro_batch x accumulation x processes"
    some = f"[{', '.join(str(processes * 2**n) for n in range(2, 5))}]"
    if isinstance(parameter, Range):
        span = f"{plain(parameter.low)} to {plain(parameter.high)}"
        why = f"{span} has values that {processes} processes cannot share ({product})"
        notes.refuse("search.batch_size", None, f"{why}: give choices that they divide, such as {{choices: {some}}}.")
        return
    values = parameter.values if isinstance(parameter, Choices) else (parameter.value,)
    bad = [value for value in values if not _is_shared(value, processes)]
    if bad:
        listed = ", ".join(quoted(value) for value in bad[:_MANY])
        why = f"{processes} processes cannot share {listed} ({product})"
        notes.refuse("search.batch_size", bad[0], f"{why}: use multiples of {processes}, such as {some}.")
    elif not _is_shared(start, processes):
        why = f"{processes} processes cannot share {quoted(start)} ({product})"
        notes.refuse("baseline.batch_size", start, f"{why}: use a multiple of {processes}.")


def _is_shared(batch_size: Any, processes: int) -> bool:
    return isinstance(batch_size, int) and batch_size % processes == 0


def check_gpus(notes: Notes, processes: int, gpus: float | None) -> None:
    """GPUs are counted per trial, so several processes take whole ones, as many each."""
    if processes > 1 and gpus and gpus % processes != 0:
        shares = f"{processes} processes cannot share {plain(gpus)} GPUs"
        remedy = f"use a multiple of {processes}, 0 for the CPU, or auto for one each"
        notes.refuse("resources.gpus", gpus, f"{shares}, which are counted per trial: {remedy}.")
