"""`doctor`: what is wrong with this machine or its settings, and what to do about it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from x5tune import failing, screen, wording
from x5tune.serve_commands import DatabaseUrl, Home, RayAddress, as_variables

if TYPE_CHECKING:
    from tuner.checkup import Finding

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    timeout_s: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", min=1, max=3600, help="How long a check may take.")
    ] = 60,
    home: Home = None,
    database_url: DatabaseUrl = None,
    ray_address: RayAddress = None,
) -> None:
    """Look at what jobs need here, and say what is wrong and what to do. Starts nothing, changes nothing.

    The exit code is 0 when jobs can run here, warnings or not, and 1 when there is a problem.

    Example: x5tune doctor
    """
    from service.doctor import look_around

    given = as_variables(HOME=home, DATABASE_URL=database_url, RAY_ADDRESS=ray_address)
    found = look_around({**os.environ, **given}, timeout_s)
    can_run_jobs = all(finding.level != "problem" for _, finding in found)
    if as_json:
        checks = [{"name": name, "level": f.level, "found": f.found, "action": f.action} for name, f in found]
        screen.write_json({"can_run_jobs": can_run_jobs, "checks": checks})
    else:
        _show(found)
    if not can_run_jobs:
        raise typer.Exit(failing.FAILED)


def _show(found: list[tuple[str, Finding]]) -> None:
    """A line a check, what to do below it, and the sum of it all."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, finding in found:
        grid.add_row(Text(finding.level, STYLES[finding.level]), Text(name), Text(wording.one_line(finding.found)))
        if finding.action:
            grid.add_row("", "", Text(wording.one_line(finding.action), "dim" if finding.level == "ok" else "bold"))
    screen.show(grid, "", _sum([finding.level for _, finding in found]))


def _sum(levels: list[str]) -> str:
    problems, warnings = levels.count("problem"), levels.count("warning")
    told = [wording.plural(count, word) for count, word in ((problems, "problem"), (warnings, "warning")) if count]
    return (
        f"Jobs {'cannot' if problems else 'can'} run here{': ' if told else '.'}{', '.join(told)}{'.' if told else ''}"
    )
