"""Alembic's entry: migrates the connection that `service.migrate` passes, or the database of the environment."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection

from alembic import context
from service.database import CleanJson, CleanText, Timestamp, make_engine
from service.migrate import VERSION_TABLE, include_object
from service.models import Base
from service.settings import Settings


def render_item(type_: str, item: Any, _context: Any) -> str | Literal[False]:
    """Migrations name plain types: they must not change when our decorators do."""
    if type_ == "type" and isinstance(item, Timestamp):
        return "sa.DateTime(timezone=True)"
    if type_ == "type" and isinstance(item, CleanText):
        return "sa.Text()"
    if type_ == "type" and isinstance(item, CleanJson):
        return "sa.JSON()"
    return False


def migrate(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        version_table=VERSION_TABLE,
        include_object=include_object,
        render_item=render_item,
        compare_type=True,
        transactional_ddl=True,  # SQLite's too: `service.database` begins transactions itself
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    migrate(given)
else:
    settings = context.config.attributes.get("settings") or Settings.from_environment()
    engine = make_engine(settings.database_url)
    with engine.execution_options(x5_write=True).connect() as connection:
        migrate(connection)
        connection.commit()
    engine.dispose()
