"""A job specification as a user wrote it, resolved: every default filled in, every `auto` decided, or refused."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tuner.estimate import Estimate, estimate
from tuner.jobspec import (
    OWN_SEARCH,
    Budget,
    Confirm,
    Cost,
    Limits,
    MetricSource,
    Objective,
    Parameter,
    Range,
    ResolvedJob,
    Resources,
    UserCode,
)
from tuner.spec_advice import advise
from tuner.spec_class import read_class
from tuner.spec_code import read_code
from tuner.spec_fidelity import read_fidelity, read_own_fidelity
from tuner.spec_numbers import ABOVE_0, Bounds
from tuner.spec_own import check_placeholders, read_class_space, read_own_space, used_placeholders
from tuner.spec_problems import BadValue, Notes, Problem, SpecError, SpecWarning, kind, nearest, quoted
from tuner.spec_processes import check_gpus, check_processes
from tuner.spec_reading import check_metrics, read_metrics, read_own_objective, says_epochs_only
from tuner.spec_samplers import check_sampler, choose_search
from tuner.spec_section import Section
from tuner.spec_space import read_space
from tuner.spec_webhook import read_webhook
from workloads.catalog import MANIFESTS
from workloads.contract import Fidelity
from workloads.manifest import Direction, Manifest

__all__ = ["Problem", "Resolution", "SpecError", "SpecWarning", "resolve"]

KEYS = (
    "name", "workload", "objective", "search", "baseline", "fidelity", "budget", "limits", "precision", "pruner",
    "sampler", "confirm", "resources", "environment", "metrics", "snapshot", "history", "range_test", "health",
    "priority", "seed", "webhook",
)  # fmt: skip
LIMITS = (
    "memory_fraction", "host_memory_mib", "disk_mib", "checkpoints_mib", "probe_seconds", "silence_seconds",
    "max_failures", "max_accumulation", "checkpointing",
)  # fmt: skip
CODE_LIKE = re.compile(r"[:/]|\.py\b")
"""In a workload's name: somebody means a file or a function."""
DEFAULT_WORKLOAD = "digits-cnn"
DEFAULT_TRIALS = 40
MAX_TRIALS = 100_000
MAX_NAME_CHARS = 200
MAX_PROCESSES = 64
MAX_VARIABLES = 1000
MAX_VARIABLE_CHARS = 32_768
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")
PRUNERS = ("auto", OWN_SEARCH, "none", "median", "halving", "hyperband", "percentile", "patient")
SAMPLERS = ("auto", OWN_SEARCH, "random", "tpe", "gp", "cmaes", "grid")
CHECKPOINTING: tuple[Literal["auto", "always", "never"], ...] = ("auto", "always", "never")
PRECISIONS: tuple[Literal["auto", "fp32", "bf16", "fp16"], ...] = ("auto", "fp32", "bf16", "fp16")
NO_CAP = "Use null for no cap."


@dataclass(frozen=True, slots=True)
class Resolution:
    """A job that can run, what is odd about it, and what it will take."""

    job: ResolvedJob
    warnings: tuple[SpecWarning, ...]
    estimate: Estimate


def resolve(
    spec: object,
    *,
    manifests: Mapping[str, Manifest] = MANIFESTS,
    seconds_per_full_run: float | None = None,
) -> Resolution:
    """The job that `spec` describes; raises `SpecError` with all problems at once, and nothing else.

    Null for a key means its default. `seconds_per_full_run` is what earlier jobs measured; it sharpens the estimate.
    """
    notes = Notes()
    if not isinstance(spec, Mapping):
        notes.refuse("", spec, f"A job specification must be a mapping, and this is {kind(spec)}.")
        raise SpecError(notes.problems)
    top = Section.open(notes, "", spec, KEYS)
    job = _job(top, _workload(top, manifests))
    if notes.problems or job is None:
        raise SpecError(notes.problems)
    expected = estimate(job, seconds_per_full_run)
    advise(notes, job, expected, seconds_per_full_run)
    return Resolution(job, tuple(notes.warnings), expected)


@dataclass(frozen=True, slots=True)
class _Training:
    """What depends on the workload."""

    label: str
    space: Mapping[str, Parameter]
    baseline: Mapping[str, Any]
    fidelity: Fidelity
    objective: Objective
    code: UserCode | None = None
    is_our_loop: bool = False


def _job(top: Section, workload: Manifest | UserCode | None) -> ResolvedJob | None:
    """The job, None without a workload; what does not depend on the workload is checked all the same."""
    metrics = read_metrics(top)
    snapshot = top.boolean("snapshot")
    if snapshot and isinstance(workload, Manifest):
        top.refuse("snapshot", f"is for your own code: {workload.name} has no folder. Leave snapshot out, or false.")
    name = _name(top)
    budget = _budget(top)
    limits = _limits(top)
    precision = top.option("precision", PRECISIONS)
    pruner = top.option("pruner", PRUNERS)
    sampler = top.option("sampler", SAMPLERS)
    confirm = _confirm(top)
    resources = _resources(top)
    environment = _environment(top)
    priority = top.integer("priority", Bounds(-1000, 1000))
    seed = top.integer("seed", Bounds(0, 2**32 - 1))
    history = top.boolean("history")
    range_test = top.boolean("range_test")
    activations = top.section("health", ("activations",)).boolean("activations")
    webhook = read_webhook(top)
    if workload is None:
        return None
    training = _built_in(top, workload) if isinstance(workload, Manifest) else _own(top, workload, metrics, confirm)
    if top.notes.is_clean("workload", "search", "baseline", "resources"):
        check_processes(top.notes, resources.processes, workload, training.space, training.baseline)
    if limits.max_accumulation is not None and isinstance(training.space.get("batch_size"), Range):
        why = "is for batch sizes that are given one by one: a range has primes, which take the most of all."
        top.notes.refuse(
            "limits.max_accumulation", limits.max_accumulation, f"{why} Give search.batch_size choices, or use null."
        )
    if top.notes.is_clean("workload") and not training.is_our_loop:
        if activations:
            what = f"is for built-ins with a model and for classes; {training.label} trains by itself"
            top.notes.refuse("health.activations", True, f"{what}. Leave it out, or false.")
        if limits.checkpointing == "always":
            why = "is for built-ins and classes, whose models x5tune can reach; in your own loop turn it on yourself."
            top.notes.refuse("limits.checkpointing", limits.checkpointing, f"{why} Use auto or never.")
    sampler, pruner = choose_search(top.notes, sampler or "auto", pruner or "auto", training.fidelity.reports)
    if top.notes.is_clean("search", "baseline"):
        check_sampler(top.notes, sampler, training.space)
    return ResolvedJob(
        name=name or training.label[:MAX_NAME_CHARS],
        workload=training.label,
        objective=training.objective,
        space=training.space,
        baseline=training.baseline,
        fidelity=training.fidelity,
        budget=budget,
        limits=limits,
        precision=precision or "auto",
        pruner=pruner,
        sampler=sampler,
        confirm=confirm,
        resources=resources,
        environment=environment,
        history=history is not False,
        range_test=range_test is not False,
        activations=bool(activations),
        priority=priority or 0,
        seed=seed or 0,
        code=training.code,
        metrics=metrics,
        snapshot=bool(snapshot),
        webhook=webhook,
    )


def _built_in(top: Section, manifest: Manifest) -> _Training:
    if top.has("metrics"):
        top.refuse("metrics", f"is for commands only: {manifest.name} reports by itself. Leave metrics out, or null.")
    space, baseline = read_space(top.notes, top.get("search"), top.get("baseline"), manifest)
    fidelity = read_fidelity(top, manifest, space, baseline)
    objective = _objective(top, manifest)
    return _Training(manifest.name, space, baseline, fidelity, objective, is_our_loop=manifest.needs_torch)


def _own(top: Section, code: UserCode, metrics: MetricSource | None, confirm: Confirm) -> _Training:
    if code.target is not None and top.has("metrics"):
        remedy = "is for commands only; a Python function reports by itself, a class by what evaluate gives"
        top.refuse("metrics", f"{remedy}. Leave metrics out, or null.")
    manifest = read_class(top.notes, code)
    notes = top.notes if top.notes.is_clean("workload") else Notes()  # else one mistake makes many problems
    if manifest is None:
        space, baseline = read_own_space(notes, top.get("search"), top.get("baseline"), used_placeholders(code))
    else:
        space, baseline = read_class_space(notes, top.get("search"), top.get("baseline"), manifest)
    objective = read_own_objective(top, DIRECTIONS, metrics)
    fidelity = read_own_fidelity(
        top, space, baseline, manifest, is_function=code.target is not None, has_epochs_only=says_epochs_only(metrics)
    )
    is_read = top.notes.is_clean("search", "baseline")
    if code.argv and is_read:
        check_placeholders(top.notes, code, space, confirm.runs > 0)
    if metrics is not None and metrics.path is not None and "run_dir" not in used_placeholders(code):
        where = "the script has to write into the folder that X5TUNE_RUN_DIR names; add it where it takes such a folder"
        top.notes.warn("metrics", f"The command does not use {{run_dir}}, so {where}.")
    if metrics is not None and is_read and top.notes.is_clean("fidelity", "objective", "metrics"):
        check_metrics(top, metrics, objective.metric, fidelity, "batch_size" in space)
    return _Training(code.label, space, baseline, fidelity, objective, code, is_our_loop=manifest is not None)


def _workload(top: Section, manifests: Mapping[str, Manifest]) -> Manifest | UserCode | None:
    given = top.get("workload")
    name = DEFAULT_WORKLOAD if given is None else given
    listed = ", ".join(manifests)
    own = "a mapping such as {python: train.py:train, folder: /path/to/it}"
    if isinstance(name, Mapping):
        return read_code(top.notes, name)
    if not isinstance(name, str):
        top.refuse("workload", f"must be the name of a built-in ({listed}), or {own}, and this is {kind(name)}.")
    elif name not in manifests:
        hint = nearest(name, manifests)
        yours = f" Code of your own is {own}." if CODE_LIKE.search(name) else ""
        top.refuse("workload", f"There is no built-in workload {quoted(name)}.{hint} There are: {listed}.{yours}")
    else:
        return manifests[name]
    return None


def _name(top: Section) -> str | None:
    given = top.get("name")
    if given is None:
        return None
    name = str(given) if isinstance(given, int) and not isinstance(given, bool) and abs(given) < 2**63 else given
    if not isinstance(name, str):
        top.refuse("name", f"must be text, and this is {kind(name)}; put it in quotes.")
    elif not name.strip():
        top.refuse("name", "is empty; give a name, or leave it out to use the workload's.")
    elif len(name) > MAX_NAME_CHARS:
        top.refuse("name", f"has {len(name)} characters; at most {MAX_NAME_CHARS} are allowed.")
    elif any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        top.refuse("name", "must not contain control characters such as line breaks or tabs.")
    else:
        return name
    return None


def _objective(top: Section, manifest: Manifest) -> Objective:
    section = top.section("objective", ("metric", "direction"))
    metric = section.option("metric", manifest.metrics) or manifest.metric
    direction = section.option("direction", DIRECTIONS)
    if metric == manifest.metric:
        if direction not in (None, manifest.direction):
            usual = f"{metric} is better the {'lower' if manifest.direction == 'minimize' else 'higher'}"
            top.notes.warn("objective.direction", f"{usual}, and this job does the opposite: {direction}.")
    elif direction is None and not section.has("direction"):
        message = f"is missing: say whether {metric} is better lower (minimize) or higher (maximize)."
        top.notes.refuse("objective.direction", None, message)
    return Objective(metric, direction or manifest.direction)


def _budget(top: Section) -> Budget:
    keys = ("trials", "full_runs", "seconds", "device_hours", "energy_kwh", "cost")
    section = top.section("budget", keys)
    others = [key for key in keys if key != "trials" and section.has(key)]
    trials = section.integer("trials", Bounds(1, MAX_TRIALS), NO_CAP)
    return Budget(
        trials=DEFAULT_TRIALS if trials is None and not others else trials,
        full_runs=section.number("full_runs", ABOVE_0, NO_CAP),
        seconds=section.number("seconds", ABOVE_0, NO_CAP),
        device_hours=section.number("device_hours", ABOVE_0, NO_CAP),
        cost=_cost(section),
        energy_kwh=section.number("energy_kwh", ABOVE_0, NO_CAP),
    )


def _cost(budget: Section) -> Cost | None:
    if not budget.has("cost"):
        return None
    if not isinstance(budget.get("cost"), Mapping):
        budget.refuse("cost", "must be a mapping such as {amount: 20, per_device_hour: 2.5}.")
        return None
    section = budget.section("cost", ("amount", "per_device_hour"))
    for key in ("amount", "per_device_hour"):
        if not section.has(key):
            message = f"{key} is missing; write cost like {{amount: 20, per_device_hour: 2.5}}."
            budget.notes.refuse(section.field(key), None, message)
    amount = section.number("amount", ABOVE_0, "Use cost: null for no cap.")
    per_device_hour = section.number("per_device_hour", ABOVE_0)
    return None if amount is None or per_device_hour is None else Cost(amount, per_device_hour)


def _limits(top: Section) -> Limits:
    section = top.section("limits", LIMITS)
    usual = Limits()
    checkpoints_mib = section.number("checkpoints_mib", Bounds(0.0, 2.0**40), "Use null for 65536, 0 to pause nothing.")
    fraction = section.number("memory_fraction", Bounds(0.0, 1.0, exclusive_low=True))
    return Limits(
        memory_fraction=usual.memory_fraction if fraction is None else fraction,
        host_memory_mib=section.number("host_memory_mib", Bounds(1.0, 2.0**30), "Use null for no limit."),
        disk_mib=section.number("disk_mib", Bounds(1.0, 2.0**40)) or usual.disk_mib,
        probe_seconds=section.number("probe_seconds", ABOVE_0, "Use null for no limit."),
        silence_seconds=section.number("silence_seconds", ABOVE_0) or usual.silence_seconds,
        max_failures=section.integer("max_failures", Bounds(1)) or usual.max_failures,
        checkpoints_mib=usual.checkpoints_mib if checkpoints_mib is None else checkpoints_mib,
        max_accumulation=section.integer("max_accumulation", Bounds(1), "Use null for no cap."),
        checkpointing=section.option("checkpointing", CHECKPOINTING) or usual.checkpointing,
    )


def _confirm(top: Section) -> Confirm:
    section = top.section("confirm", ("top", "seeds", "always"))
    usual = Confirm()
    finalists = section.integer("top", Bounds(0, 10))
    seeds = section.integer("seeds", Bounds(0, 64))
    if seeds == 1:
        section.refuse("seeds", "One seed cannot be tested for chance; use 2 to 64 (5 is usual), or 0 to skip this.")
    always = bool(section.boolean("always"))
    return Confirm(usual.top if finalists is None else finalists, usual.seeds if seeds is None else seeds, always)


def _resources(top: Section) -> Resources:
    section = top.section("resources", ("cpus", "gpus", "processes"))
    gpus: float | None = None
    if section.get("gpus") != "auto":
        gpus = section.number("gpus", Bounds(0.0), "Use auto for one where there is one.")
    if gpus is not None and gpus > 1 and not gpus.is_integer():
        section.refuse("gpus", "must be a fraction up to 1, or a whole number.")
    processes = section.integer("processes", Bounds(1, MAX_PROCESSES)) or 1
    if section.notes.is_clean("resources"):
        check_gpus(section.notes, processes, gpus)
    return Resources(section.number("cpus", ABOVE_0) or float(processes), gpus, processes)


def _environment(top: Section) -> dict[str, str]:
    given = top.get("environment")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        top.refuse("environment", f"must be a mapping of names to text, and this is {kind(given)}.")
        return {}
    if len(given) > MAX_VARIABLES:
        top.refuse("environment", f"has {len(given)} variables; at most {MAX_VARIABLES} are allowed.")
        return {}
    variables: dict[str, str] = {}
    for name, value in given.items():
        shown = quoted(name)
        field = f"environment.{shown[1:-1]}" if isinstance(name, str) else "environment"
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            top.notes.refuse(field, name, f"{shown} cannot be a variable's name: use letters, digits and underscores.")
        elif name.upper().startswith("X5TUNE_"):
            top.notes.refuse(field, value, "Names that start with X5TUNE_ belong to x5tune; choose another.")
        else:
            try:
                variables[name] = _variable(value)
            except BadValue as bad:
                top.notes.refuse(field, value, bad.message)
    return variables


def _variable(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadValue(f"must be text, and this is {kind(value)}; put it in quotes.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise BadValue("is too large a number; put it in quotes.")
    text = value if isinstance(value, str) else repr(value)
    if len(text) > MAX_VARIABLE_CHARS:
        raise BadValue(f"has {len(text)} characters; at most {MAX_VARIABLE_CHARS} are allowed.")
    if any(character == "\0" or unicodedata.category(character) == "Cs" for character in text):
        raise BadValue("has a character that a variable cannot hold.")
    return text
