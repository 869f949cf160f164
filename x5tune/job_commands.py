"""The commands about jobs and what came of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, cast

import typer

from x5tune import completing, screen, wording
from x5tune.errors import Unreachable, UsageError, WaitTimeout, X5tuneError
from x5tune.naming import find_job, find_recipe_or_job
from x5tune.options import JobName, Json, Token, Url
from x5tune.shapes import ENDED, Job, Page, Recipe, Trial

if TYPE_CHECKING:
    from x5tune.client import Client

MAX_PAGE = 200


class NothingToExport(X5tuneError):  # noqa: N818 - said of what was named
    """The job has no recipe."""


def jobs(
    *,
    state: Annotated[
        str | None,
        typer.Option(
            help="Only queued, running, succeeded, failed or cancelled jobs; several with commas.",
            autocompletion=completing.states,
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload", "-w", help="Only this workload.", autocompletion=completing.workloads, show_default=False
        ),
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only names with this text.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="How many at most.")] = 20,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List jobs, the newest first.

    Example: x5tune jobs --state running,queued
    """
    with screen.talk(url, token, as_json=as_json) as client:
        page = client.jobs_page(limit=min(limit, MAX_PAGE), state=state, workload=workload, q=search)
        while page["next"] and len(page["items"]) < limit:
            size = min(limit - len(page["items"]), MAX_PAGE)
            more = client.jobs_page(limit=size, cursor=page["next"], state=state, workload=workload, q=search)
            page = Page[Job](items=page["items"] + more["items"], next=more["next"])
    if as_json:
        screen.write_json(page)
        return
    from x5tune import tables

    console = screen.console()
    if page["items"]:
        screen.show(tables.jobs_table(page["items"], console))
        if page["next"]:
            screen.note(f"There are more; see them with: x5tune jobs --limit {limit * 5}")
    elif state or workload or search:
        screen.show("No job matches.")
    else:
        screen.show(
            "There are no jobs yet. Submit the first one with:", "  x5tune submit --workload digits-cnn --watch"
        )


def show(
    job: JobName,
    *,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", "-t", min=0, help="One trial of it: its curve, hardware and output.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Show a job: where it stands, what it has found, why it waits or failed. Or one of its trials.

    Example: x5tune show last --trial 3
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = find_job(client, job)
        if trial is not None:
            show_trial(found, client.trial(found["id"], trial), as_json=as_json)
            return
        if as_json:
            screen.write_json(found)
            return
        recipes = client.recipes(found["id"])
        best_trial = client.trial(found["id"], found["best"]["trial"]) if found["best"] else None
        address = client.url
    from x5tune import health_tables, summary, tables

    console = screen.console()
    health = health_tables.health_line(best_trial) if best_trial else ""
    screen.show(tables.job_details(found, address, health))
    if recipes:
        screen.show("", tables.recipe_table(recipes, wording.searched(found["resolved"]), console))
    screen.show("", summary.next_steps(found, recipes))


def show_trial(job: Job, trial: Trial, *, as_json: bool) -> None:
    if as_json:
        screen.write_json(trial)
        return
    from x5tune.trial_details import trial_details

    screen.show(trial_details(job, trial))


def watch(job: JobName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Follow a job until it has ended. Ctrl-C stops watching, not the job.

    The exit code is 1 when the job failed or was cancelled.

    Example: x5tune watch last
    """
    with screen.talk(url, token, as_json=as_json) as client:
        follow_to_the_end(client, find_job(client, job), as_json=as_json)


def cancel(job: JobName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Cancel a job: a queued one never starts, a running one winds down and keeps its recipes.

    Example: x5tune cancel 0198a1b2
    """
    with screen.talk(url, token, as_json=as_json) as client:
        before = find_job(client, job)
        after = client.cancel(before["id"])
    name = wording.handle(after["id"])
    if as_json:
        screen.write_json(after)
    elif before["state"] in ENDED:
        screen.show(f"Job {name} had ended already: {before['state']}.")
    elif after["state"] in ENDED:
        screen.show(f"Job {name} is {after['state']}.")
    else:
        screen.show(f"Job {name} winds down and keeps its recipes. Follow it with: x5tune watch {name}")


def delete(
    job: JobName,
    *,
    recipes: Annotated[bool, typer.Option("--recipes", help="Delete its recipes too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Delete a job that has ended, with its trials and its study. Its recipes stay, unless you say otherwise.

    Asks first where there is a terminal to ask on. Prints nothing with --json: the API says nothing either.

    Example: x5tune delete 0198a1b2 --recipes
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = find_job(client, job)
        if not yes and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
            what = f"Delete {wording.one_line(found['name'])} ({wording.handle(found['id'])})"
            typer.confirm(what + (" and its recipes?" if recipes else "?"), abort=True)
        client.delete(found["id"], recipes=recipes)
    if not as_json:
        kept = " with its recipes" if recipes else "; its recipes stay"
        screen.show(f"Job {found['id']} is deleted{kept}.")


def trials(
    job: JobName,
    *,
    outcome: Annotated[
        list[str] | None,
        typer.Option(
            "--outcome",
            "-o",
            help="Only with this outcome (ok, pruned, …) or state (running, paused, …); several with commas.",
            autocompletion=completing.outcomes,
            show_default=False,
        ),
    ] = None,
    health: Annotated[
        bool, typer.Option("--health", help="Show gradients, updates, clipping, loss scale and waiting instead.")
    ] = False,
    sort: Annotated[str, typer.Option(help="By number, or by value: the best first.", metavar="number|value")] = (
        "number"
    ),
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """List a job's trials: how each ended, what it reached, with which parameters.

    Example: x5tune trials last --outcome ok --sort value
    """
    wanted = _outcomes(outcome or [])
    if sort not in ("number", "value"):
        raise UsageError(f"--sort takes number or value, not {sort!r}.")
    with screen.talk(url, token, as_json=as_json) as client:
        found = find_job(client, job)
        items = [each for each in client.trials(found["id"]) if not wanted or _status(each) in wanted]
    if sort == "value":
        items.sort(key=lambda trial: _worth(trial, wording.direction(found)))
    if as_json:
        screen.write_json(Page[Trial](items=items, next=None))
        return
    from x5tune import summary, tables

    console = screen.console()
    if items and health:
        from x5tune import health_tables

        screen.show(health_tables.health_table(items))
    elif items:
        screen.show(tables.trials_table(items, wording.searched(found["resolved"]), console))
    elif wanted:
        screen.show(f"No trial of this job is {' or '.join(map(wording.words, wanted))}.")
    else:
        text = "This job has no trials yet." if found["state"] not in ENDED else "This job ran no trials."
        screen.show(text, "", summary.next_steps(found, ()))


def best(job: JobName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show a job's recipes, the first one in full; or why there is none.

    Example: x5tune best last
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = find_job(client, job)
        page = client.recipes_page(found["id"])
    if as_json:
        screen.write_json(page)
        return
    from rich.text import Text

    from x5tune import summary, tables

    recipes = page["items"]
    if not recipes:
        screen.show(summary.why_no_recipe(found))
        return
    first = recipes[0]
    screen.show(
        tables.recipe_table(recipes, wording.searched(found["resolved"]), screen.console()),
        "",
        Text(f"Recipe 1, trial {first['trial']}  {first['id']}", "bold"),
        tables.styled(tables.evidence(first), first["status"]),
        *([told] if (told := tables.batch_trade(first)) else []),
        tables.recipe_parameters(first),
        *tables.findings(found),
        "",
        summary.next_steps(found, recipes, but="best"),
    )


def export(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB_OR_RECIPE",
            help="A job (its first recipe is taken) or a recipe: an id, the beginning of one, or `last`.",
            autocompletion=completing.jobs,
            show_default=False,
        ),
    ],
    format: Annotated[  # noqa: A002 - the word that users see
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="|".join(completing.FORMATS),
            help="How to write it. [dim]\\[default: yaml][/dim]",
            autocompletion=completing.formats,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Print a recipe in the notation of a trainer.

    Example: python train.py $(x5tune export last --format args)
    """
    if as_json and format not in (None, "json"):
        raise UsageError(f"--json and --format {format} do not go together.")
    with screen.talk(url, token, as_json=as_json) as client:
        recipe = _recipe(client, name)
        text = client.export(recipe["id"], "json" if as_json else format or "yaml")
    if recipe["status"] != "proven":
        screen.note("Note: this recipe is provisional: it was not confirmed on fresh seeds.")
    sys.stdout.write(text)


def follow_to_the_end(client: Client, job: Job, *, as_json: bool) -> None:
    """Show a job until its end and what came of it; leaves with the exit code that fits."""
    from x5tune import watching

    try:
        ended = watching.follow(client, job, as_json=as_json)
    except KeyboardInterrupt:
        screen.note(f"\nNo longer watching; the job goes on. {_way_back(job)}")
        raise typer.Exit(130) from None
    except (Unreachable, WaitTimeout) as error:
        error.add_note(f"The job itself is safe, and goes on as soon as its service does. {_way_back(job)}")
        raise
    if as_json:
        screen.write_json_line(ended)
    else:
        from x5tune import summary

        recipes = client.recipes(ended["id"])
        screen.show("", summary.outcome_of(ended, recipes, screen.console()))
    raise typer.Exit(watching.exit_code(ended))


def _way_back(job: Job) -> str:
    return f"Come back with: x5tune watch {wording.handle(job['id'])}"


def _recipe(client: Client, name: str) -> Recipe:
    """The recipe of this name, or the first one of the job of this name."""
    found = find_recipe_or_job(client, name)
    if "rank" in found:
        return cast(Recipe, found)
    job = found
    recipes = client.recipes(job["id"])
    if recipes:
        return recipes[0]
    handle = wording.handle(job["id"])
    reasons = [wording.one_line(finding["message"]) for finding in job["diagnosis"][:1]]
    if job["error"]:
        reasons = ["It failed:", wording.one_line(job["error"])]
    if not reasons and job["state"] not in ENDED:
        reasons = [f"It is {job['state']}."]
    raise NothingToExport(" ".join([f"Job {handle} has no recipe.", *reasons, f"See: x5tune best {handle}"]))


def _outcomes(given: list[str]) -> list[str]:
    wanted = [word.strip().replace(" ", "_").lower() for text in given for word in text.split(",") if word.strip()]
    known = (*completing.OUTCOMES, *completing.TRIAL_STATES)
    for word in wanted:
        if word not in known:
            raise UsageError(f"--outcome {word!r} is none of {', '.join(known)}.")
    return wanted


def _status(trial: Trial) -> str:
    return trial["outcome"] or trial["state"]


def _worth(trial: Trial, way: str) -> tuple[bool, float, int]:
    """A key that sorts the best value first and those without one last."""
    value = trial["value"]
    if value is None:
        return True, 0.0, trial["number"]
    return False, value if way == "minimize" else -value, trial["number"]
