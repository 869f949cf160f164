"""Frontiers of memory: what earlier jobs have proven to fit; kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.models import Frontier
from service.store import kept

KEY = ("fingerprint", "device", "precision", "checkpointing", "limit_bytes")
MAX_DEVICE_CHARS = 255


def put_all(session: Session, job_id: str, workload: str, fit: Mapping[str, Any]) -> None:
    """Keep what phase `fit` of a job has come to, if it was through and something fits.

    Where that took activation checkpointing, this too: that nothing fits without, as a micro-batch of 0.
    """
    if fit["state"] != "done" or fit["micro_batch"] is None:
        return
    put(session, job_id, workload, fit)
    without = fit["without_checkpointing"]
    if without is not None:
        micro_batch = without["micro_batch"] or 0
        put(session, job_id, workload, {**fit, **without, "checkpointing": False, "micro_batch": micro_batch})


def put(session: Session, job_id: str, workload: str, fit: Mapping[str, Any]) -> None:
    """Keep one frontier; it replaces what was known of the same."""
    key = {name: fit[name] for name in KEY} | {"device": fit["device"][:MAX_DEVICE_CHARS]}
    known = sa.select(Frontier).filter_by(**key)
    values = {name: fit[name] for name in ("cap_bytes", "micro_batch", "peak_bytes", "samples_per_s")}
    values |= {"job_id": job_id, "workload": workload}
    row = session.scalars(known).one_or_none()
    if row is None:
        try:
            with session.begin_nested():
                session.add(Frontier(**key, **values, proofs=fit["proofs"]))
            return
        except IntegrityError:  # another runner was quicker
            row = session.scalars(known).one()
    for name, value in values.items():
        setattr(row, name, value)
    if fit["proofs"]:  # without one of its own the job has gone by those that are there
        row.proofs = fit["proofs"]


def known(session: Session, workload: str) -> list[dict[str, Any]]:
    """What `run_study` may start from: the proofs of earlier jobs on this workload, the newest frontier first."""
    rows = session.scalars(kept.search(Frontier, workload=workload, device=None, before=None, limit=200))
    names = (*KEY, "micro_batch", "peak_bytes", "proofs")
    return [{name: getattr(row, name) for name in names} for row in rows]
