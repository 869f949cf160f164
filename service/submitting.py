"""A valid submission becomes a job: its folder copied where that is asked for, its row made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from sqlalchemy.orm import Session

from service import snapshots
from service.errors import FieldError, invalid
from service.models import Job
from service.settings import Settings
from service.store import jobs
from service.submission import Submission


def require_secret(settings: Settings, webhook: str | None) -> None:
    """Refuse a webhook where there is nothing to sign with."""
    if webhook is not None and settings.webhook_secret is None:
        message = "cannot be told: set X5TUNE_WEBHOOK_SECRET for the service, which signs every message"
        raise invalid([FieldError("webhook", webhook, message)])


@contextlib.contextmanager
def copied(settings: Settings, submission: Submission, job_id: str) -> Iterator[Submission]:
    """The submission with its folder copied, where it asks for that; the copy goes when the job does not come to be."""
    if submission.snapshot_of is None:
        yield submission
        return
    copy = settings.snapshots / job_id
    snapshots.take(submission.snapshot_of, copy, settings.snapshot_mib << 20, settings.home)
    try:
        workload = {**submission.resolved["workload"], "folder": str(copy)}
        snapshots.require_in_copy(workload, copy)
        yield replace(submission, resolved={**submission.resolved, "workload": workload})
    except BaseException:
        snapshots.remove(copy)
        raise


def create_job(
    session: Session,
    submission: Submission,
    job_id: str,
    *,
    idempotency_key: str | None = None,
    parent_id: str | None = None,
    schedule_id: str | None = None,
    token_id: str | None = None,
) -> Job:
    """The job, queued."""
    return jobs.create(
        session,
        Job(
            id=job_id,
            name=submission.name,
            workload=submission.workload,
            spec=submission.spec,
            resolved=submission.resolved,
            estimate=submission.estimate,
            warnings=submission.warnings,
            priority=submission.priority,
            total=submission.total,
            idempotency_key=idempotency_key,
            parent_id=parent_id,
            schedule_id=schedule_id,
            webhook=submission.webhook,
            token_id=token_id,
        ),
    )
