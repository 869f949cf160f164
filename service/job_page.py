"""The page of one job: where it stands, its recipes, its trials with their curves. From views, without a database."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from service.markup import Markup, table, tag, void
from service.schemas import JobOut, RecipeOut, TrialOut

WIDTH, HEIGHT = 120, 28
MAX_TRIALS = 200


def job_content(
    job: JobOut, recipes: Sequence[RecipeOut], trials: Sequence[TrialOut]
) -> list[tuple[str, object] | Markup]:
    """What stands between the header and the end of the page."""
    parts: list[tuple[str, object] | Markup] = [_facts(job)]
    if job.error:
        parts.append(tag("p", job.error, class_="error"))
    for finding in job.diagnosis:
        parts.append(tag("p", finding.get("message", ""), void("br"), tag("small", "→ ", finding.get("action", ""))))
    if recipes:
        parts += [tag("h2", "Recipes"), _recipes(recipes)]
    parts.append(tag("h2", "Trials"))
    if not trials:
        parts.append(("p", "None yet."))
        return parts
    names = _searched(job)
    low, high = _span(trials)
    rows = [_trial(trial, names, low, high) for trial in trials]
    parts.append(table(["#", "Outcome", "Curve", "Value", *names, "Seconds", "Reason"], rows))
    if len(trials) == MAX_TRIALS:
        parts.append(tag("p", tag("small", f"The first {MAX_TRIALS}; all of them: x5tune trials {job.id}")))
    return parts


def _facts(job: JobOut) -> Markup:
    objective = job.resolved.get("objective") or {}
    state = job.state if job.phase is None or job.state != "running" else f"{job.state}: {job.phase}"
    total = "" if job.progress.total is None else f" of {job.progress.total}"
    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in job.outcomes.items())
    rows: list[tuple[str, object]] = [
        ("State", tag("span", state, class_=job.state)),
        ("Verdict", (job.verdict or "–").replace("_", " ")),
        ("Workload", job.workload),
        ("Objective", f"{objective.get('direction', '')} {objective.get('metric', '')}"),
        ("Trials", f"{job.progress.done}{total}" + (f": {outcomes}" if outcomes else "")),
        ("Baseline", _value(job.baseline.value if job.baseline else None)),
        ("Best", _value(job.best.value if job.best else None) + (f" (trial {job.best.trial})" if job.best else "")),
        ("Spent", _spent(job)),
    ]
    if job.stop_reason:
        rows.append(("Stopped", job.stop_reason.replace("_", " ")))
    if job.waiting_for is not None:
        rows.append(("Waits", job.waiting_for.message))
    if job.parent_id:
        rows.append(("Fork of", tag("a", job.parent_id, href=f"/jobs/{job.parent_id}")))
    if job.study.url:
        rows.append(("Study", tag("a", "open in the Optuna dashboard", href=job.study.url)))
    return tag("table", tag("tbody", *(tag("tr", tag("th", name), tag("td", value)) for name, value in rows)))


def _spent(job: JobOut) -> str:
    parts = [f"{job.spend.device_seconds:.0f} s of device time"]
    if job.spend.energy_kwh is not None:
        note = f" ({job.spend.energy_reason})" if job.spend.energy_reason else ""
        parts.append(f"{job.spend.energy_kwh:.4g} kWh{note}")
    if job.spend.cost is not None:
        parts.append(f"cost {job.spend.cost:.2f}")
    return ", ".join(parts)


def _recipes(recipes: Sequence[RecipeOut]) -> Markup:
    rows = [
        [
            recipe.rank,
            recipe.status,
            tag("td", _value(recipe.value), class_="number"),
            tag("td", _value(recipe.baseline_value), class_="number"),
            tag("td", _gain(recipe), class_="number"),
            tag("code", _assignments({**recipe.parameters, **recipe.derived})),
        ]
        for recipe in recipes
    ]
    return table(["#", "Status", "Value", "Baseline", "Better by", "Parameters"], rows)


def _gain(recipe: RecipeOut) -> str:
    if recipe.difference is None:
        return "–"
    interval = f", {recipe.interval[0]:.4g} to {recipe.interval[1]:.4g}" if recipe.interval else ""
    return f"{recipe.difference:.4g}{interval}"


def _trial(trial: TrialOut, names: Sequence[str], low: float, high: float) -> list[object]:
    label = (trial.outcome or trial.state).replace("_", " ") + (" (baseline)" if trial.is_baseline else "")
    seconds = sum(float(probe.get("seconds") or 0.0) for probe in trial.probes)
    return [
        trial.number,
        label,
        tag("td", sparkline([point.value for point in trial.curve], low, high)),
        tag("td", _value(trial.value) if trial.value_kind == "finite" else trial.value_kind, class_="number"),
        *(tag("td", _brief(trial.parameters.get(name, "–")), class_="number") for name in names),
        tag("td", f"{seconds:.1f}" if trial.probes else "–", class_="number"),
        tag("small", trial.reason or ""),
    ]


def sparkline(values: Sequence[float | None], low: float, high: float) -> Markup:
    """A curve in a small picture; all of a page share its scale, from `low` at the bottom to `high`."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup("")
    span = high - low or 1.0
    step = WIDTH / max(1, len(known) - 1)
    points = " ".join(
        f"{index * step:.1f},{HEIGHT - 2 - (HEIGHT - 4) * min(1.0, max(0.0, (value - low) / span)):.1f}"
        for index, value in enumerate(known)
    )
    label = f"{len(known)} reports, from {known[0]:.4g} to {known[-1]:.4g}"
    line = tag("polyline", points=points, fill="none", stroke="currentColor", stroke_width="1.5")
    return tag(
        "svg", tag("title", label), line, viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT, role="img"
    )


def _span(trials: Sequence[TrialOut]) -> tuple[float, float]:
    """From the least to the upper decile of all values: one curve that explodes must not flatten the others."""
    values = sorted(point.value for trial in trials for point in trial.curve if point.value is not None)
    if not values:
        return 0.0, 1.0
    return values[0], values[min(len(values) - 1, math.ceil(0.9 * len(values)))]


def _searched(job: JobOut) -> list[str]:
    space = job.resolved.get("search") or {}
    return [name for name, value in space.items() if isinstance(value, dict) and ("low" in value or "choices" in value)]


def _assignments(parameters: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_brief(value)}" for name, value in parameters.items() if value is not None)


def _brief(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"
