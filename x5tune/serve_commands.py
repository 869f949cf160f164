"""`serve`, `runner` and `migrate`: what runs here instead of talking to a service."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from x5tune.errors import UsageError, X5tuneError

if TYPE_CHECKING:
    from service.settings import Settings

Home = Annotated[
    str | None,
    typer.Option(
        envvar="X5TUNE_HOME",
        metavar="FOLDER",
        help="Where the database, the data and client.json are. [dim]\\[default: $XDG_DATA_HOME/x5tune][/dim]",
        show_default=False,
    ),
]
DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        envvar="X5TUNE_DATABASE_URL",
        metavar="URL",
        help="postgresql://… or sqlite:////path/file.db. [dim]\\[default: SQLite in the home folder][/dim]",
        show_default=False,
    ),
]
LeaseS = Annotated[
    float | None,
    typer.Option(
        envvar="X5TUNE_LEASE_S",
        metavar="SECONDS",
        help="How long a silent runner keeps its job. [dim]\\[default: 30][/dim]",
        show_default=False,
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        envvar="X5TUNE_RAY_ADDRESS",
        metavar="ADDRESS",
        help="A running Ray cluster. [dim]\\[default: one of its own][/dim]",
        show_default=False,
    ),
]


class ServiceFailed(X5tuneError):  # noqa: N818 - the word that users see
    """The service, or its database, could not be brought up."""


class SettingRefused(UsageError):  # noqa: N818 - the word that users see
    """A setting that cannot be used."""


def serve(
    *,
    host: Annotated[
        str | None,
        typer.Option(
            envvar="X5TUNE_HOST", help="The address to listen on. [dim]\\[default: 127.0.0.1][/dim]", show_default=False
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            envvar="X5TUNE_PORT",
            help="The port to listen on; 0 takes a free one. [dim]\\[default: 8000][/dim]",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    database_url: DatabaseUrl = None,
    lease_s: LeaseS = None,
    ray_address: RayAddress = None,
    no_runner: Annotated[
        bool, typer.Option("--no-runner", help="Run the API only; jobs run in `x5tune runner`.")
    ] = False,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            envvar="X5TUNE_PUBLIC",
            help="Allow an address that others can reach; read docs/security.md first.",
        ),
    ] = False,
) -> None:
    """Run the service here: the API and a runner, until Ctrl-C.

    An SQLite database is brought up to date first; for PostgreSQL run `x5tune migrate`.

    The address and a token are left in client.json for the other commands.

    Example: x5tune serve --port 8080
    """
    with _failing_plainly():
        settings = _settings(
            HOST=host,
            PORT=port,
            HOME=home,
            DATABASE_URL=database_url,
            LEASE_S=lease_s,
            RAY_ADDRESS=ray_address,
            PUBLIC=1 if public else None,
        )
        from service import supervisor

        supervisor.serve(settings, not no_runner, say=_say)


def runner(
    home: Home = None, database_url: DatabaseUrl = None, lease_s: LeaseS = None, ray_address: RayAddress = None
) -> None:
    """Run jobs here, for a service that shares the database. Ctrl-C hands the job in hand back.

    Example: x5tune runner --database-url postgresql://x5tune@db/x5tune
    """
    with _failing_plainly():
        settings = _settings(HOME=home, DATABASE_URL=database_url, LEASE_S=lease_s, RAY_ADDRESS=ray_address)
        settings.prepare_home()
        from service.migrate import require_current

        require_current(settings)
        os.environ.update(settings.environment())
        os.chdir(settings.home)  # not the user's folder, whose own packages may have our names
    _become_runner()


def migrate(home: Home = None, database_url: DatabaseUrl = None) -> None:
    """Create the database's tables, or bring them up to date. Safe to repeat, and to run twice at once.

    Example: x5tune migrate --database-url postgresql://x5tune@db/x5tune
    """
    with _failing_plainly():
        settings = _settings(HOME=home, DATABASE_URL=database_url)
        settings.prepare_home()
        from service import migrate as migrations

        migrations.upgrade(settings)
        _say(f"The database is at revision {migrations.current(settings)}.")


def gc(
    *,
    keep_days: Annotated[
        float | None,
        typer.Option(
            envvar="X5TUNE_KEEP_DAYS",
            metavar="DAYS",
            help="How long details of ended jobs are kept. [dim]\\[default: 90][/dim]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    home: Home = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Remove details of jobs that ended long ago: events of their reports, hardware samples, logs, copied folders.

    Jobs, trials with their curves, and recipes stay. The service does this by itself every hour.

    Example: x5tune gc --keep-days 30 --dry-run
    """
    with _failing_plainly():
        settings = _settings(HOME=home, DATABASE_URL=database_url, KEEP_DAYS=keep_days)
        settings.prepare_home()
        from service import housekeeping
        from service.database import Database
        from service.migrate import require_current

        require_current(settings)
        database = Database(settings.database_url)
        try:
            swept = housekeeping.sweep(database, settings, is_dry=dry_run)
        finally:
            database.close()
        _say(f"{'Would remove' if dry_run else 'Removed'} {swept.words()}.")


def _settings(**given: object) -> Settings:
    """The settings of the environment, with what was given on top."""
    from service.settings import Settings

    return Settings.from_environment({**os.environ, **as_variables(**given)})


def as_variables(**given: object) -> dict[str, str]:
    """Options as the variables that they stand for; what was not given is left out."""
    return {f"X5TUNE_{name}": str(value) for name, value in given.items() if value is not None}


@contextmanager
def _failing_plainly() -> Iterator[None]:
    """Turn what the service says of itself into this package's errors."""
    from service.errors import ServiceError, SettingError

    try:
        yield
    except SettingError as error:
        raise SettingRefused(str(error)) from error
    except ServiceError as error:
        raise ServiceFailed(str(error)) from error
    except ModuleNotFoundError as error:
        raise ServiceFailed(f"This needs {error.name}: pip install 'x5tune[all]'") from error
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, SQLAlchemyError):
            raise
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise ServiceFailed(f"The database cannot be used: {reason}") from error


def _say(text: str) -> None:
    typer.echo(text)


def _become_runner() -> None:
    """Replace this process, so that signals reach the runner itself and nothing of this command stays in memory."""
    from service.children import import_path

    sys.stdout.flush()
    command = [sys.executable, "-P", "-m", "service.runner"]
    os.execve(sys.executable, command, {**os.environ, **import_path()})  # noqa: S606 - no shell is wanted
