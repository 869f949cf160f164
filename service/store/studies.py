"""Optuna's side of the database: finding the study of a job, and removing it. A study's name is its job's id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import sqlalchemy as sa
from sqlalchemy.orm import Session

_studies = sa.table("studies", sa.column("study_id", sa.Integer), sa.column("study_name", sa.String))


def ids(session: Session, job_ids: Iterable[str]) -> Mapping[str, int]:
    """The study ids of the jobs that have started."""
    wanted = list(job_ids)
    if not wanted:
        return {}
    rows = session.execute(
        sa.select(_studies.c.study_name, _studies.c.study_id).where(_studies.c.study_name.in_(wanted))
    )
    return {name: study_id for name, study_id in rows}  # noqa: C416 - rows are no tuples to the type checker


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
