"""`x5tune schedule`: nightly sweeps."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from x5tune import completing, screen, wording
from x5tune.errors import UsageError, X5tuneError
from x5tune.naming import find_named
from x5tune.options import Assignments, DisplayName, Json, SpecFile, Token, Url, WorkloadName
from x5tune.shapes import Page, Schedule
from x5tune.submit_commands import AFTER_DASHES, CommandAfterDashes

if TYPE_CHECKING:
    from x5tune.client import Client

schedule_app = typer.Typer(no_args_is_help=True)

ScheduleName = Annotated[
    str,
    typer.Argument(
        metavar="SCHEDULE",
        help="A schedule's id, the beginning of one, or its name.",
        autocompletion=completing.schedules,
        show_default=False,
    ),
]


class UnknownSchedule(X5tuneError):  # noqa: N818 - said of what was named
    """No schedule, or several, go by this name."""


@schedule_app.command("add", cls=CommandAfterDashes)
def add(
    context: typer.Context,
    file: SpecFile = None,
    *,
    cron: Annotated[
        str,
        typer.Option(metavar="CRON", help='When: minute, hour, day, month, weekday, such as "0 2 * * *"; or @daily.'),
    ],
    timezone: Annotated[str, typer.Option("--timezone", metavar="ZONE", help="Whose clock: Europe/Berlin.")] = "UTC",
    overlap: Annotated[
        str,
        typer.Option(help="While the run before still runs: skip this one, queue it, or replace the one before."),
    ] = "skip",
    missed: Annotated[
        str, typer.Option(help="When nobody was there at a due time: run once as soon as somebody is, or skip.")
    ] = "once",
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="The last day, such as 2027-01-31.", show_default=False)
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Told of a new best, a regression or a failure.", show_default=False),
    ] = None,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    name: DisplayName = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job at every due time. Each run is compared with the best recipe of those before.

    Example: x5tune schedule add examples/digits.yaml --cron "0 2 * * *" --timezone Europe/Berlin
    """
    from x5tune.specfile import read_spec

    spec = read_spec(
        file, workload=workload, assignments=assignments or (), name=name, command=context.meta[AFTER_DASHES]
    )
    rules: dict[str, Any] = {"cron": cron, "timezone": timezone, "overlap": overlap, "missed": missed, "spec": spec}
    rules["name"] = name or spec.get("name") or _workload_name(spec)
    rules |= {"ends_at": _last_day(until)} if until else {}
    rules |= {"webhook": webhook} if webhook else {}
    with screen.talk(url, token, as_json=as_json) as client:
        made = client.create_schedule(rules)
    if as_json:
        screen.write_json(made)
        return
    screen.show(f"Schedule {wording.one_line(made['name'])}  {made['id']}")
    screen.show(f"{made['cron_words']}, {made['timezone']}; first on {_moment(made['next_at'])}.")


@schedule_app.command("list")
def list_schedules(as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """List the schedules: when each is due, and what came of its last night.

    Example: x5tune schedule list
    """
    with screen.talk(url, token, as_json=as_json) as client:
        items = list(client.schedules())
    if as_json:
        screen.write_json(Page[Schedule](items=items, next=None))
        return
    if not items:
        screen.show(
            "There are no schedules yet. Make the first one with:",
            '  x5tune schedule add --workload digits-cnn --cron "0 2 * * *"',
        )
        return
    from x5tune import schedule_tables

    screen.show(schedule_tables.schedules_table(items, screen.console()))


@schedule_app.command("show")
def show(schedule: ScheduleName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Show a schedule with its nights: what ran, and how it compared.

    Example: x5tune schedule show nightly
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = client.schedule(find_schedule(client, schedule)["id"])
    if as_json:
        screen.write_json(found)
        return
    from x5tune import schedule_tables

    screen.show(schedule_tables.schedule_details(found))


@schedule_app.command("run")
def run(schedule: ScheduleName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Submit a run now, due or not; it waits until the run before has ended.

    Example: x5tune schedule run nightly
    """
    with screen.talk(url, token, as_json=as_json) as client:
        job = client.run_schedule(find_schedule(client, schedule)["id"])
    if as_json:
        screen.write_json(job)
    else:
        name = wording.handle(job["id"])
        screen.show(f"Submitted {wording.one_line(job['name'])}  {job['id']}", f"Follow it with: x5tune watch {name}")


@schedule_app.command("pause")
def pause(schedule: ScheduleName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Submit nothing until it is resumed. A run that is under way goes on.

    Example: x5tune schedule pause nightly
    """
    _set_state(schedule, "paused", as_json=as_json, url=url, token=token)


@schedule_app.command("resume")
def resume(schedule: ScheduleName, as_json: Json = False, url: Url = None, token: Token = None) -> None:
    """Go on from the next due time; what was missed meanwhile is not made up for.

    Example: x5tune schedule resume nightly
    """
    _set_state(schedule, "active", as_json=as_json, url=url, token=token)


@schedule_app.command("remove")
def remove(
    schedule: ScheduleName,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Remove a schedule and the record of its nights. Its jobs and recipes stay.

    Example: x5tune schedule remove nightly
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = find_schedule(client, schedule)
        name = wording.one_line(found["name"])
        if not yes and not as_json:
            typer.confirm(f"Remove schedule {name} and the record of its nights?", abort=True, err=True)
        client.delete_schedule(found["id"])
    if not as_json:
        screen.show(f"Schedule {name} is removed.")


def find_schedule(client: Client, name: str) -> Schedule:
    """The schedule of this name. Raises UnknownSchedule."""
    return find_named(list(client.schedules()), name, "schedule", UnknownSchedule)


def _set_state(name: str, state: str, *, as_json: bool, url: str | None, token: str | None) -> None:
    with screen.talk(url, token, as_json=as_json) as client:
        changed = client.change_schedule(find_schedule(client, name)["id"], {"state": state})
    if as_json:
        screen.write_json(changed)
    elif changed["next_at"] is None:
        screen.show(f"Schedule {wording.one_line(changed['name'])} is {changed['state']}.")
    else:
        screen.show(f"Schedule {wording.one_line(changed['name'])} is due next on {_moment(changed['next_at'])}.")


def _workload_name(spec: dict[str, Any]) -> str:
    workload = spec.get("workload")
    return workload if isinstance(workload, str) else "nightly"


def _last_day(text: str) -> str:
    try:
        day = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UsageError(f"--until takes a date such as 2027-01-31, not {text!r}.") from error
    if len(text.strip()) == len("2027-01-31"):
        day = day.replace(hour=23, minute=59, second=59)
    return day.astimezone().isoformat()


def _moment(text: str | None) -> str:
    if text is None:
        return "no day"
    return wording.moment(text).astimezone().strftime("%Y-%m-%d at %H:%M (your time)")
