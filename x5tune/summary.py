"""How a job came out: verdict, reasons, recipes, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from x5tune import tables, wording
from x5tune.shapes import Job, Recipe


def outcome_of(job: Job, recipes: Sequence[Recipe], console: Console) -> RenderableType:
    """The whole story of an ended job."""
    parts: list[RenderableType] = [verdict(job, recipes)]
    if job["stop_reason"] and job["state"] != "cancelled":
        parts.append(Text(f"It ended because {tables.stop_reason(job)}."))
    parts += tables.findings(job)
    if recipes:
        parts += [Text(""), tables.recipe_table(recipes, wording.searched(job["resolved"]), console)]
    parts += [Text(""), next_steps(job, recipes)]
    return Group(*parts)


def verdict(job: Job, recipes: Sequence[Recipe]) -> Text:
    """One line: what the job found."""
    if job["state"] == "failed":
        return Text("The job failed.", "bold red")
    found = _found(job, recipes[0]) if recipes else ""
    if job["state"] == "cancelled":
        return Text("The job was cancelled. ", "bold yellow").append(found or "There is no recipe.", "not bold default")
    if job["verdict"] == "recommended" and recipes:
        text = Text(f"Recommended: trial {recipes[0]['trial']}, {recipes[0]['status']}. ", "bold green")
        return text.append(found, "not bold default")
    return Text("No recommendation.", "bold yellow")


def _found(job: Job, recipe: Recipe) -> str:
    start = "It" if job["verdict"] == "recommended" else f"Trial {recipe['trial']}"
    return f"{start} reached {wording.metric(job)} {wording.number(recipe['value'])}{_gain(recipe)}."


def _gain(recipe: Recipe) -> str:
    base, gain = recipe["baseline_value"], recipe["difference"]
    if base is None or gain is None:
        return ""
    share = wording.percent(abs(gain / base)) if base else f"{abs(gain):.4g}"
    return f", {share} {'better' if gain > 0 else 'worse'} than the baseline ({wording.number(base)})"


def why_no_recipe(job: Job) -> RenderableType:
    """An empty place where recipes would be, explained."""
    if job["state"] == "queued":
        text = "There is no recipe yet: the job has not started."
    elif job["state"] == "running":
        text = "There is no recipe yet: no trial has beaten the baseline so far."
    else:
        text = "There is no recipe."
    parts: list[RenderableType] = [Text(text)]
    if job["waiting_for"]:
        parts.append(Text(wording.one_line(job["waiting_for"]["message"]), tables.STYLES["waiting"]))
    if job["stop_reason"] and not job["diagnosis"] and not job["error"]:
        parts.append(Text(f"The job ended because {tables.stop_reason(job)}."))
    return Group(*parts, *tables.findings(job), Text(""), next_steps(job, ()))


def next_steps(job: Job, recipes: Sequence[Recipe], but: str = "") -> RenderableType:
    """Commands that make sense now, except the one that has just been given."""
    name = wording.handle(job["id"])
    steps: list[tuple[str, str]] = []
    if job["state"] in ("queued", "running"):
        steps.append((f"x5tune watch {name}", "follow it"))
    if recipes:
        steps.append((f"x5tune best {name}", "all parameters"))
        steps.append((f"x5tune export {name} --format args", "to paste into a trainer"))
    if job["progress"]["done"]:
        steps.append((f"x5tune trials {name}", "every trial"))
    elif not steps:
        steps.append((f"x5tune show {name}", "the job"))
    grid = tables.pairs([])
    grid.columns[0].style = ""
    for command, what in steps:
        if command.split()[1] == but:
            continue
        grid.add_row(Text(command), Text(what, "dim"))
    return grid
