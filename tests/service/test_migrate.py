"""Migrations: complete, repeatable, and safe when several processes start at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from optuna.storages._rdb import models as optuna_models

from alembic import command
from service import migrate
from service.database import make_engine
from service.errors import NotMigratedError
from service.models import Base
from service.settings import Settings


def test_upgrade_makes_our_tables_and_optunas(empty_settings: Settings) -> None:
    migrate.upgrade(empty_settings)

    engine = make_engine(empty_settings.database_url)
    tables = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    assert tables >= set(Base.metadata.tables) | {"studies", "trials", "version_info", "alembic_version"}
    assert migrate.current(empty_settings) == migrate.head()


def test_upgrade_twice_changes_nothing(empty_settings: Settings) -> None:
    migrate.upgrade(empty_settings)
    migrate.upgrade(empty_settings)
    migrate.require_current(empty_settings)


def test_models_and_migrations_agree_and_optunas_tables_are_ignored(settings: Settings) -> None:
    command.check(migrate._config(settings))


def test_downgrade_leaves_only_optunas_tables(settings: Settings) -> None:
    command.downgrade(migrate._config(settings), "base")

    engine = make_engine(settings.database_url)
    ours = [name for name in sa.inspect(engine).get_table_names() if name.startswith("x5_")]
    engine.dispose()
    assert ours == [migrate.VERSION_TABLE]


def test_none_of_our_tables_has_a_name_of_optunas() -> None:
    assert not set(Base.metadata.tables) & set(optuna_models.BaseModel.metadata.tables)
    assert migrate.VERSION_TABLE != "alembic_version"


def test_an_unmigrated_database_is_refused_with_the_remedy(empty_settings: Settings) -> None:
    with pytest.raises(NotMigratedError, match="x5tune migrate"):
        migrate.require_current(empty_settings)


def test_three_processes_may_migrate_at_once(empty_settings: Settings) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "service.migrate"], env=_environment(empty_settings), stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[1].decode() for process in processes]

    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    migrate.require_current(empty_settings)


def _environment(settings: Settings) -> dict[str, str]:
    import os

    return {**os.environ, **settings.environment()}
