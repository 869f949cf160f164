"""A job specification as a user wrote it, resolved: every default filled in, every `auto` decided, or refused."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tuner.estimate import Estimate, estimate
from tuner.jobspec import (
    Budget,
    Confirm,
    Cost,
    Fixed,
    Limits,
    Objective,
    Parameter,
    ResolvedJob,
    Resources,
)
from tuner.spec_advice import advise
from tuner.spec_numbers import ABOVE_0, Bounds, plain
from tuner.spec_problems import BadValue, Notes, Problem, SpecError, SpecWarning, kind, nearest, quoted
from tuner.spec_samplers import check_sampler
from tuner.spec_section import Section
from tuner.spec_space import read_space
from workloads.catalog import MANIFESTS
from workloads.contract import Fidelity
from workloads.manifest import Axis, Direction, Manifest

__all__ = ["Problem", "Resolution", "SpecError", "SpecWarning", "resolve"]

KEYS = (
    "name", "workload", "objective", "search", "baseline", "fidelity", "budget", "limits", "precision", "pruner",
    "sampler", "confirm", "resources", "environment", "metrics", "snapshot", "history", "priority", "seed",
)  # fmt: skip
DEFAULT_WORKLOAD = "digits-cnn"
DEFAULT_TRIALS = 40
MAX_TRIALS = 100_000
MAX_NAME_CHARS = 200
MAX_VARIABLES = 1000
MAX_VARIABLE_CHARS = 32_768
AXES: tuple[Axis, ...] = ("samples", "tokens", "seconds", "steps")
DIRECTIONS: tuple[Direction, ...] = ("minimize", "maximize")
PRUNERS = ("auto", "none", "median", "halving", "hyperband", "percentile", "patient")
SAMPLERS = ("auto", "random", "tpe", "gp", "cmaes", "grid")
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
    manifest = _manifest(top, manifests)
    job = _job(top, manifest)
    if notes.problems or job is None:
        raise SpecError(notes.problems)
    expected = estimate(job, seconds_per_full_run)
    advise(notes, job, expected, seconds_per_full_run)
    return Resolution(job, tuple(notes.warnings), expected)


def _job(top: Section, manifest: Manifest | None) -> ResolvedJob | None:
    """The job, None without a workload; what does not depend on the workload is checked all the same."""
    top.unavailable("metrics", "Reading metrics from a script's output is not available yet.")
    if top.boolean("snapshot"):
        top.refuse("snapshot", "Snapshots are not available yet. Leave snapshot out, or false.")
    if top.boolean("history"):
        top.notes.warn("history", "Learning from earlier jobs has no effect yet.")
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
    history = top.get("history")
    if manifest is None:
        return None
    space, baseline = read_space(top.notes, top.get("search"), top.get("baseline"), manifest)
    sampler = "tpe" if sampler in (None, "auto") else sampler
    if top.notes.is_clean("search", "baseline"):
        check_sampler(top.notes, sampler, space)
    fidelity = _fidelity(top, manifest, space, baseline)
    if pruner in (None, "auto"):
        pruner = "median" if fidelity.reports >= 4 else "none"
    return ResolvedJob(
        name=name or manifest.name,
        workload=manifest.name,
        objective=_objective(top, manifest),
        space=space,
        baseline=baseline,
        fidelity=fidelity,
        budget=budget,
        limits=limits,
        precision=precision or "auto",
        pruner=pruner,
        sampler=sampler,
        confirm=confirm,
        resources=resources,
        environment=environment,
        history=history is not False,
        priority=priority or 0,
        seed=seed or 0,
    )


def _manifest(top: Section, manifests: Mapping[str, Manifest]) -> Manifest | None:
    given = top.get("workload")
    name = DEFAULT_WORKLOAD if given is None else given
    listed = ", ".join(manifests)
    if isinstance(name, Mapping):
        for key, what in (("python", "Your own Python training code"), ("command", "Your own training command")):
            if key in name:
                top.refuse("workload", f"{what} is not available yet; use a built-in: {listed}.")
                return None
    if not isinstance(name, str):
        top.refuse("workload", f"must be the name of a built-in, and this is {kind(name)}. There are: {listed}.")
    elif name not in manifests:
        hint = nearest(name, manifests)
        top.refuse("workload", f"There is no built-in workload {quoted(name)}.{hint} There are: {listed}.")
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


def _fidelity(
    top: Section, manifest: Manifest, space: Mapping[str, Parameter], baseline: Mapping[str, object]
) -> Fidelity:
    section = top.section("fidelity", ("axis", "max", "reports"))
    usual = Section(Notes(), "", manifest.fidelity)
    own_axis = usual.option("axis", AXES) or "samples"
    axis = section.option("axis", AXES) or own_axis
    if axis == "tokens" and manifest.tokens_per_sample is None:
        section.refuse("axis", f"{manifest.name} has no tokens; use samples, seconds or steps.")
    if axis == "steps" and top.notes.is_clean("search", "baseline"):
        _check_steps_axis(section, space, baseline)
    longest = section.integer("max", Bounds(1)) if axis == "steps" else section.number("max", _smallest(axis))
    if longest is None:
        longest = usual.number("max", ABOVE_0) or 1.0
        if axis != own_axis and not section.has("max"):
            own = f"{manifest.name}'s default is in {own_axis}"
            top.notes.refuse("fidelity.max", None, f"is missing: say how many {axis} a full run takes ({own}).")
    reports = section.integer("reports", Bounds(1, 1000)) or usual.integer("reports", ABOVE_0) or 20
    if axis == "steps" and reports > longest:
        top.notes.warn("fidelity.reports", f"{reports} reports do not fit into {plain(longest)} steps.")
    return Fidelity(axis, float(longest), reports)


def _smallest(axis: Axis) -> Bounds:
    return ABOVE_0 if axis == "seconds" else Bounds(1)


def _check_steps_axis(section: Section, space: Mapping[str, Parameter], baseline: Mapping[str, object]) -> None:
    batch_size = space.get("batch_size")
    if batch_size is None:
        return
    if not isinstance(batch_size, Fixed):
        fix = f"fix it in search (batch_size: {quoted(baseline['batch_size'])}), or use the samples axis."
        section.refuse("axis", f"steps compares trials fairly only with one batch size: {fix}")
    elif batch_size.value != baseline["batch_size"]:
        section.refuse("axis", "steps needs the same batch_size in search and baseline; or use the samples axis.")


def _budget(top: Section) -> Budget:
    keys = ("trials", "full_runs", "seconds", "device_hours", "energy_kwh", "cost")
    section = top.section("budget", keys)
    section.unavailable("energy_kwh", "Energy caps are not available yet.")
    others = [key for key in ("full_runs", "seconds", "device_hours", "cost") if section.has(key)]
    trials = section.integer("trials", Bounds(1, MAX_TRIALS), NO_CAP)
    return Budget(
        trials=DEFAULT_TRIALS if trials is None and not others else trials,
        full_runs=section.number("full_runs", ABOVE_0, NO_CAP),
        seconds=section.number("seconds", ABOVE_0, NO_CAP),
        device_hours=section.number("device_hours", ABOVE_0, NO_CAP),
        cost=_cost(section),
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
    keys = ("memory_fraction", "host_memory_mib", "probe_seconds", "silence_seconds", "max_failures")
    section = top.section("limits", keys)
    section.unavailable("host_memory_mib", "A cap on host memory is not available yet.")
    usual = Limits()
    fraction = section.number("memory_fraction", Bounds(0.0, 1.0, exclusive_low=True))
    if fraction not in (None, usual.memory_fraction):
        later = "takes effect with the memory fit, which is not available yet"
        top.notes.warn("limits.memory_fraction", f"{plain(fraction or 0)} {later}.")
    return Limits(
        memory_fraction=usual.memory_fraction if fraction is None else fraction,
        probe_seconds=section.number("probe_seconds", ABOVE_0, "Use null for no limit."),
        silence_seconds=section.number("silence_seconds", ABOVE_0) or usual.silence_seconds,
        max_failures=section.integer("max_failures", Bounds(1)) or usual.max_failures,
    )


def _confirm(top: Section) -> Confirm:
    section = top.section("confirm", ("top", "seeds"))
    usual = Confirm()
    finalists = section.integer("top", Bounds(0, 10))
    seeds = section.integer("seeds", Bounds(0, 64))
    if seeds == 1:
        section.refuse("seeds", "One seed cannot be tested for chance; use 2 to 64 (5 is usual), or 0 to skip this.")
    return Confirm(usual.top if finalists is None else finalists, usual.seeds if seeds is None else seeds)


def _resources(top: Section) -> Resources:
    section = top.section("resources", ("cpus", "gpus", "processes"))
    gpus: float | None = None
    if section.get("gpus") != "auto":
        gpus = section.number("gpus", Bounds(0.0), "Use auto for one where there is one.")
    if gpus is not None and gpus > 1 and not gpus.is_integer():
        section.refuse("gpus", "must be a fraction up to 1, or a whole number.")
    processes = section.integer("processes", Bounds(1))
    if processes is not None and processes > 1:
        section.refuse("processes", "More than one process per trial is not available yet; use 1.")
    return Resources(cpus=section.number("cpus", ABOVE_0) or 1.0, gpus=gpus)


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
