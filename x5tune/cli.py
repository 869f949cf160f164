"""The `x5tune` command: what there is, and how every way to fail ends."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from x5tune import (
    admin_commands,
    diagnose_command,
    doctor_command,
    failing,
    job_commands,
    schedule_commands,
    screen,
    serve_commands,
    submit_commands,
    suggest_command,
)
from x5tune.options import ADMIN_PANEL, JOBS_PANEL, RUN_PANEL, SUBMIT_PANEL

app = typer.Typer(
    name="x5tune",
    help="Tune learning rate, batch size, weight decay, loss scale and gradient clip of your training code.",
    epilog="A first run: [bold]x5tune serve[/bold] in one terminal, then "
    "[bold]x5tune submit --workload digits-cnn --watch[/bold] in another.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"x5tune {version('x5tune')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None: ...


app.command(rich_help_panel=RUN_PANEL)(serve_commands.serve)
app.command(rich_help_panel=RUN_PANEL)(serve_commands.runner)
app.command(rich_help_panel=RUN_PANEL)(serve_commands.migrate)
app.command(rich_help_panel=RUN_PANEL)(serve_commands.gc)
app.command(rich_help_panel=RUN_PANEL)(doctor_command.doctor)
app.command(rich_help_panel=RUN_PANEL)(diagnose_command.diagnose)
app.command(rich_help_panel=SUBMIT_PANEL, cls=submit_commands.CommandAfterDashes)(submit_commands.submit)
app.command(rich_help_panel=SUBMIT_PANEL, cls=submit_commands.CommandAfterDashes)(submit_commands.validate)
app.command(rich_help_panel=SUBMIT_PANEL)(suggest_command.suggest)
app.command(rich_help_panel=SUBMIT_PANEL)(submit_commands.fork)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.jobs)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.show)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.watch)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.best)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.export)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.trials)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.cancel)
app.command(rich_help_panel=JOBS_PANEL)(job_commands.delete)
app.add_typer(
    schedule_commands.schedule_app, name="schedule", rich_help_panel=SUBMIT_PANEL, help="Nightly sweeps, by the clock."
)
app.command(rich_help_panel=ADMIN_PANEL)(admin_commands.workloads)
app.command(rich_help_panel=ADMIN_PANEL)(admin_commands.fit)
app.add_typer(
    admin_commands.token_app, name="token", rich_help_panel=ADMIN_PANEL, help="Make, list and revoke API tokens."
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; its exit code."""
    screen.stand_in_for_closed_streams()
    screen.escape_what_cannot_be_shown()
    try:
        code = app(arguments, standalone_mode=False, prog_name="x5tune")
    except KeyboardInterrupt:
        code = failing.INTERRUPTED
    except typer.Abort:
        screen.note("Aborted: nothing was done.")
        code = failing.FAILED
    except Exception as error:
        code = _on_error(error)
    unwritten = failing.flush()
    return (code if isinstance(code, int) else 0) or unwritten


def _on_error(error: Exception) -> int:
    if failing.is_debugging():
        import traceback

        traceback.print_exc()
    # Typer's own errors have no public base class, and where it lives has changed between versions.
    describe = getattr(error, "format_message", None)
    if describe is None:
        return failing.report(error)
    return failing.report_usage(error, str(describe()))


if __name__ == "__main__":
    sys.exit(main())
