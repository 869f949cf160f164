"""Bring the database's schema to what this version needs: our tables by Alembic, Optuna's by Optuna.

Safe to run from several processes at once: one at a time holds a lock (an advisory lock on PostgreSQL, a lock file
beside the database on SQLite). Optuna's tables are created here too, under the same lock, because two processes that
open an empty Optuna storage at once break each other.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from alembic import command
from service.database import make_engine
from service.errors import NotMigratedError, ServiceError, SettingError
from service.models import Base
from service.settings import Settings

VERSION_TABLE = "x5_alembic_version"
OWN_INDEXES = ("ix_x5_jobs_listed", "ix_x5_jobs_workload")
"""Made by the migrations for each database in its own way, and in no model."""
LOCK_KEY = 0x7835_7475_6E65  # "x5tune"


def upgrade(settings: Settings) -> None:
    """Create or upgrade every table, and wait for another process that is doing so."""
    _check_sqlite_folder(settings)
    engine = make_engine(settings.database_url)
    try:
        with _lock(settings, engine):
            with engine.execution_options(x5_write=True).connect() as connection:
                config = _config(settings)
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.commit()
            _create_optuna_tables(settings, engine)
    finally:
        engine.dispose()


def current(settings: Settings) -> str | None:
    """The revision that the database is at; None when it has never been migrated."""
    engine = make_engine(settings.database_url)
    try:
        return revision_of(engine)
    finally:
        engine.dispose()


def head() -> str:
    """The revision that this version needs."""
    revision = ScriptDirectory(str(scripts())).get_current_head()
    if revision is None:
        raise NotMigratedError(f"There are no migrations in {scripts()}.")
    return revision


def revision_of(engine: sa.Engine) -> str | None:
    with engine.connect() as connection:
        return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def require_current(settings: Settings) -> None:
    """Raise `NotMigratedError` unless the database is at the revision that this version needs."""
    found, needed = current(settings), head()
    if found != needed:
        raise NotMigratedError(
            f"The database is at revision {found or 'none'}, this version needs {needed}: run `x5tune migrate`."
        )


def scripts() -> Path:
    """The migrations: inside the installed package, or `alembic/` at the root of a source checkout."""
    installed = Path(__file__).parent / "_migrations"
    return installed if installed.is_dir() else Path(__file__).parent.parent / "alembic"


def include_object(_object: object, name: str | None, type_: str, _reflected: bool, _compare_to: object) -> bool:
    """Tell Alembic to look at our tables only; Optuna's are Optuna's, and indexes of lists differ."""
    if type_ == "index":
        return name not in OWN_INDEXES
    return type_ != "table" or name in Base.metadata.tables


def _config(settings: Settings) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes["settings"] = settings
    return config


def _check_sqlite_folder(settings: Settings) -> None:
    database = sa.make_url(settings.database_url).database
    if settings.is_sqlite and database and not Path(database).parent.is_dir():
        raise SettingError("X5TUNE_DATABASE_URL", settings.database_url, "the folder of the database does not exist")


@contextmanager
def _lock(settings: Settings, engine: sa.Engine) -> Iterator[None]:
    if settings.is_sqlite:
        path = f"{sa.make_url(settings.database_url).database}.migrate.lock"
        with Path(path).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        return
    with engine.connect() as connection:
        connection.execute(sa.select(sa.func.pg_advisory_lock(LOCK_KEY)))
        connection.commit()  # the lock belongs to the session: no idle transaction while others wait
        try:
            yield
        finally:
            connection.execute(sa.select(sa.func.pg_advisory_unlock(LOCK_KEY)))
            connection.commit()


def _create_optuna_tables(settings: Settings, engine: sa.Engine) -> None:
    if sa.inspect(engine).has_table("version_info") and sa.inspect(engine).has_table("alembic_version"):
        return  # the import below takes a second and a hundred megabytes
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(settings.database_url)
    storage.engine.dispose()


def main() -> int:
    """`python -m service.migrate`: upgrade the database that the environment names."""
    try:
        settings = Settings.from_environment()
        settings.prepare_home()
        upgrade(settings)
    except (ServiceError, sa.exc.SQLAlchemyError) as error:
        sys.stderr.write(f"x5tune: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
