"""The options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from x5tune import completing

RUN_PANEL = "Run a service"
SUBMIT_PANEL = "Submit"
JOBS_PANEL = "Work with jobs"
ADMIN_PANEL = "Look up and administer"
CONNECTION = "Which service"

Url = Annotated[
    str | None,
    typer.Option(
        envvar="X5TUNE_URL",
        metavar="URL",
        help="The service's address. Without it: the one that `x5tune serve` runs on this machine.",
        rich_help_panel=CONNECTION,
        show_default=False,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        envvar="X5TUNE_TOKEN",
        metavar="TOKEN",
        help="A token of that service. Without it: the one in client.json, for the service of this machine.",
        rich_help_panel=CONNECTION,
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print what the API said, as JSON.")]
JobName = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id, the beginning of one, or `last`.",
        autocompletion=completing.jobs,
        show_default=False,
    ),
]
SpecFile = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE", help="A job specification in YAML or JSON; - reads standard input.", show_default=False
    ),
]
WorkloadName = Annotated[
    str | None,
    typer.Option(
        "--workload",
        "-w",
        metavar="WORKLOAD",
        help="What to train: a built-in, or train.py:train in the current folder.",
        autocompletion=completing.workloads,
        show_default=False,
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Change the specification: search.lr.high=0.1. Repeat it for more.",
        show_default=False,
    ),
]
DisplayName = Annotated[str | None, typer.Option("--name", "-n", help="What to call the job.", show_default=False)]
