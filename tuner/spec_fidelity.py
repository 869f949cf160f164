"""How long a full run is, and on which axis runs are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tuner.jobspec import Fixed, Parameter
from tuner.spec_numbers import ABOVE_0, Bounds, plain
from tuner.spec_problems import Notes, quoted
from tuner.spec_section import Section
from workloads.contract import Fidelity
from workloads.manifest import Axis, Manifest

AXES: tuple[Axis, ...] = ("samples", "tokens", "seconds", "steps")
OWN_AXES: tuple[Axis, ...] = (*AXES, "epochs")


def read_fidelity(
    top: Section, manifest: Manifest, space: Mapping[str, Parameter], baseline: Mapping[str, object]
) -> Fidelity:
    """A built-in's horizon; what is left out is the workload's own."""
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


def read_own_fidelity(
    top: Section,
    space: Mapping[str, Parameter],
    baseline: Mapping[str, object],
    manifest: Manifest | None = None,
    *,
    is_function: bool = False,
    has_epochs_only: bool = False,
) -> Fidelity:
    """The horizon of the user's own code; where `max` is left out, its first run shows how long a full run is.

    `manifest` is that of a class, whose loop is ours: `max` has to be given.

    The axis is epochs where nothing else is said (`has_epochs_only`); samples where the batch size is a parameter,
    because then steps can be counted in them; else steps.
    """
    section = top.section("fidelity", ("axis", "max", "reports"))
    usual: Axis = "epochs" if has_epochs_only else "samples" if "batch_size" in space else "steps"
    axis = section.option("axis", OWN_AXES) or usual
    if axis == "tokens" and manifest is not None and manifest.tokens_per_sample is None:
        section.refuse("axis", f"tokens needs tokens_per_sample in the class {manifest.name}: tokens in a sample.")
    if axis == "epochs" and is_function:
        section.refuse("axis", "epochs is for commands; a function plans its steps by samples, steps or seconds.")
    if top.notes.is_clean("search", "baseline"):
        if axis == "steps":
            _check_steps_axis(section, space, baseline)
        elif axis == "samples" and "batch_size" not in space and is_function:  # of a command, a report is refused
            message = "Without batch_size among the parameters, every report has to say how many samples it has seen."
            top.notes.warn("fidelity.axis", message)
    longest = section.integer("max", Bounds(1)) if axis == "steps" else section.number("max", _smallest(axis))
    if longest is None and manifest is not None and not section.has("max"):
        message = f"is missing: say how many {axis} a full run takes; x5tune owns the loop of {manifest.name}."
        top.notes.refuse("fidelity.max", None, message)
    reports = section.integer("reports", Bounds(1, 1000)) or 20
    if axis in ("steps", "epochs") and longest is not None and reports > longest:
        top.notes.warn("fidelity.reports", f"{reports} reports do not fit into {plain(longest)} {axis}.")
    return Fidelity(axis, math.inf if longest is None else float(longest), reports)


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
