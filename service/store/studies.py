"""Optuna's side of the database: finding the study of a job, and removing it. A study's name is its job's id."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

table = sa.table("studies", sa.column("study_id", sa.Integer), sa.column("study_name", sa.String))


def exists(session: Session, job_id: str) -> bool:
    """Whether the job has a study: one that has started does."""
    return session.scalar(sa.select(table.c.study_id).where(table.c.study_name == job_id)) is not None


def delete(database_url: str, job_id: str) -> None:
    """Remove the study of an ended job, through Optuna, which knows what belongs to it; no study is fine.

    Has a transaction of its own, on a connection of Optuna's: call it outside ours.
    """
    import optuna  # late: it would add a second and its memory to every start of the API

    is_sqlite = database_url.startswith("sqlite")
    engine_kwargs = {"connect_args": {"timeout": 60}} if is_sqlite else {}
    storage = optuna.storages.RDBStorage(database_url, engine_kwargs=engine_kwargs, skip_table_creation=True)
    try:
        storage.delete_study(storage.get_study_id_from_name(job_id))
    except KeyError:
        pass
    finally:
        storage.scoped_session.remove()
        storage.engine.dispose()
