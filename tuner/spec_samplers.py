"""Which search a job gets, and whether the sampler can work with the search space."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.conditions import condition_of
from tuner.jobspec import OWN_SEARCH, Choices, Parameter, Range
from tuner.spec_problems import Notes


def choose_search(notes: Notes, sampler: str, pruner: str, reports: int) -> tuple[str, str]:
    """Sampler and pruner with every `auto` decided: our own search where both are left to us, else Optuna's.

    Beside a name of Optuna's, `auto` is TPE, or the median pruner where there are reports enough.
    """
    named = {sampler, pruner} - {"auto"}
    if named <= {OWN_SEARCH}:
        return OWN_SEARCH, OWN_SEARCH
    if OWN_SEARCH in named:
        field = "sampler" if sampler == OWN_SEARCH else "pruner"
        other, value = ("pruner", pruner) if field == "sampler" else ("sampler", sampler)
        remedy = f"leave {other} out instead of {value}, or name another {field}"
        notes.refuse(field, OWN_SEARCH, f"{OWN_SEARCH} is sampler and pruner at once: {remedy}.")
    usual = "median" if reports >= 4 else "none"
    return "tpe" if sampler == "auto" else sampler, usual if pruner == "auto" else pruner


def check_sampler(notes: Notes, sampler: str, space: Mapping[str, Parameter]) -> None:
    """Refuse a sampler that cannot search `space`, warn where it would search only a part of it."""
    ranges = [name for name, parameter in space.items() if isinstance(parameter, Range)]
    choices = [name for name, parameter in space.items() if isinstance(parameter, Choices)]
    if sampler == "grid":
        continuous = [name for name in ranges if not _is_integer(space[name])]
        if continuous:
            remedy = "give choices, or use another sampler"
            notes.refuse(
                "sampler", "grid", f"grid needs choices or whole-number ranges for {_all(continuous)}; {remedy}."
            )
    apart = [name for name, parameter in space.items() if condition_of(parameter) is not None]
    if apart and sampler in ("gp", "cmaes"):
        notes.warn("sampler", f"{sampler} searches what always exists: {_all(apart)} will be drawn at random.")
    ranges = [name for name in ranges if name not in apart]
    if sampler == "cmaes":
        if len(ranges) < 2:
            notes.refuse("sampler", "cmaes", "cmaes needs at least two ranges to search; use tpe, or give more ranges.")
        elif choices:
            notes.warn("sampler", f"cmaes searches ranges only: {_all(choices)} will be drawn at random.")


def _is_integer(parameter: Parameter) -> bool:
    return isinstance(parameter, Range) and parameter.integer


def _all(names: list[str]) -> str:
    return ", ".join(names)
