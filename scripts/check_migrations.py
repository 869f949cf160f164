"""Fails unless the migrations lead exactly to the models: `alembic check` on a fresh SQLite database."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from service.database import make_engine
from service.migrate import VERSION_TABLE, include_object, upgrade
from service.models import Base
from service.settings import Settings


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        settings = Settings.from_environment({"X5TUNE_HOME": str(home)})
        upgrade(settings)
        engine = make_engine(settings.database_url)
        options = {"version_table": VERSION_TABLE, "include_object": include_object, "compare_type": True}
        with engine.connect() as connection:
            found = compare_metadata(MigrationContext.configure(connection, opts=options), Base.metadata)
        engine.dispose()
    for difference in found:
        print("not migrated:", difference)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
