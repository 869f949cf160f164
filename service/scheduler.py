"""Nightly sweeps: submits a job at each due time, exactly one however many API processes run this at once.

A due time is used up in the transaction that makes the job: whoever comes second finds the schedule moved on. The
baseline of each run is the schedule's standing recipe, which is measured again whatever is found, and has to be beaten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, cast

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service import webhooks
from service.allowed import require_room, within_roots
from service.cron import Cron, CronError
from service.database import Database
from service.errors import ProblemError, not_found
from service.ids import new_id
from service.models import Job, Night, Recipe, Schedule
from service.nights import NEWS, Comparison, Due, compare, due
from service.settings import Settings
from service.store import jobs, recipes, schedules
from service.submission import Submission, understand
from service.submitting import copied, create_job

log = logging.getLogger(__name__)

MAX_QUEUED = 100
"""Runs of one schedule that wait or run at the same time, where it queues them."""
RULES = ("next_at", "spec", "cron", "timezone", "overlap", "missed", "ends_at", "webhook")


class _TakenError(Exception):
    """Another process has used this due time, or the schedule was changed."""


class _OverlapError(Exception):
    """The job before has not ended, and the schedule skips then."""


class Scheduler:
    """`tick` does whatever is due now. `clock` stands in for the database's in tests."""

    def __init__(
        self, settings: Settings, database: Database, clock: Callable[[Session], datetime] = schedules.clock
    ) -> None:
        self._settings, self._database, self._clock = settings, database, clock

    def tick(self) -> None:
        self._compare_ended()
        with self._database.read() as session:
            now = self._clock(session)
            found = list(schedules.due(session, now))
        for schedule in found:
            try:
                self._fire(schedule, now)
            except _TakenError:
                continue
            except Exception:  # one schedule must not keep the others from their nights
                log.exception("schedule %s: could not be run", schedule.id)

    def run_now(self, schedule_id: str, token_id: str) -> str:
        """Submit a run by hand, whatever the schedule's state; it waits for the run before. The job's id.

        Raises a ProblemError.
        """
        with self._database.read() as session:
            schedule = schedules.get(session, schedule_id)
            now = self._clock(session)
            if schedule is None:
                raise not_found("schedule", schedule_id)
            standing = _standing(session, schedule)
        submission, standing_id = self._submission(schedule, standing)
        job_id = new_id()
        with copied(self._settings, submission, job_id) as whole, self._database.write() as session:
            if schedules.get(session, schedule_id, lock=True) is None:
                raise not_found("schedule", schedule_id)
            require_room(session, self._settings, token_id)
            while session.get(Night, (schedule_id, now)) is not None:  # two by hand in one tick of the clock
                now += timedelta(microseconds=1)
            night = Night(schedule_id=schedule_id, due_at=now, by_hand=True, outcome="submitted", job_id=job_id)
            night.standing_recipe_id = standing_id
            session.add(night)
            create_job(session, whole, job_id, schedule_id=schedule_id, token_id=token_id)
        return job_id

    def _fire(self, schedule: Schedule, now: datetime) -> None:
        assert schedule.next_at is not None
        try:
            found = due(Cron(schedule.cron, schedule.timezone), schedule.next_at, now, schedule.ends_at)
        except CronError as error:  # a zone that this machine does not know
            self._record(schedule, Due(schedule.next_at, 0, False, None), "refused", str(error))
            return
        if found.is_late and schedule.missed == "skip":
            self._record(schedule, found, "missed", f"nobody was there until {now:%Y-%m-%d %H:%M:%S} UTC")
            return
        try:
            self._submit(schedule, found)
        except ProblemError as error:
            self._record(schedule, found, "refused", error.detail)
        except _OverlapError as error:
            self._record(schedule, found, "skipped", str(error))
        except (_TakenError, SQLAlchemyError):
            raise
        except Exception as error:  # used up all the same: it would fail again every second
            log.exception("schedule %s: could not be run", schedule.id)
            self._record(schedule, found, "refused", f"the service failed ({type(error).__name__}); its log says how")

    def _submit(self, schedule: Schedule, found: Due) -> None:
        with self._database.read() as session:
            standing = _standing(session, schedule)
            if schedule.overlap == "skip":
                _require_no_other(session, schedule)  # before a folder is copied for nothing
        submission, standing_id = self._submission(schedule, standing)
        job_id = new_id()
        with copied(self._settings, submission, job_id) as whole, self._database.write() as session:
            _take(session, schedule, found)
            if schedule.overlap == "skip":
                _require_no_other(session, schedule)
            elif schedule.overlap == "replace" and (before := schedules.unended_job(session, schedule.id)) is not None:
                jobs.request_cancel(session, before)
            elif schedule.overlap == "queue":
                _require_short_queue(session, schedule)
            session.add(
                Night(
                    schedule_id=schedule.id,
                    due_at=found.at,
                    outcome="submitted",
                    reason=_missed(found),
                    job_id=job_id,
                    standing_recipe_id=standing_id,
                )
            )
            create_job(session, whole, job_id, schedule_id=schedule.id)
        log.info("schedule %s: job %s", schedule.id, job_id)

    def _submission(self, schedule: Schedule, standing: Recipe | None) -> tuple[Submission, str | None]:
        """The run's submission, with the standing recipe for its baseline where it still fits the specification."""
        given = within_roots(self._settings, understand(schedule.spec))
        if standing is None:
            return given, None
        names = cast(dict[str, Any], given.resolved["baseline"]).keys()
        baseline = {name: value for name, value in standing.parameters.items() if name in names}
        confirm = {**(schedule.spec.get("confirm") or {}), "always": True}
        try:
            changed = understand({**schedule.spec, "baseline": baseline, "confirm": confirm})
        except ProblemError:
            return given, None
        return within_roots(self._settings, changed), standing.id

    def _record(self, schedule: Schedule, found: Due, outcome: str, reason: str) -> None:
        """A due time that came to no job."""
        reason = f"{reason}; {_missed(found)}" if found.missed else reason
        with self._database.write() as session:
            _take(session, schedule, found)
            session.add(Night(schedule_id=schedule.id, due_at=found.at, outcome=outcome, reason=reason))
            if outcome == "refused" and schedule.webhook:
                webhooks.tell(session, schedule.webhook, "schedule.refused", schedule=_named(schedule), reason=reason)
        log.info("schedule %s: %s: %s", schedule.id, outcome, reason)

    def _compare_ended(self) -> None:
        with self._database.read() as session:
            if not schedules.uncompared(session, limit=1):
                return
        with self._database.write() as session:
            for night in schedules.uncompared(session):
                try:
                    self._compare(session, night)
                except SQLAlchemyError:
                    raise
                except Exception:  # one night must not keep the schedules from the next
                    log.exception("schedule %s: a night could not be compared", night.schedule_id)
                    night.comparison = asdict(Comparison("unknown"))

    @staticmethod
    def _compare(session: Session, night: Night) -> None:
        schedule = schedules.get(session, night.schedule_id)
        job = jobs.get(session, night.job_id or "")
        if schedule is None or job is None:
            night.comparison = asdict(Comparison("unknown"))
            return
        before, now = _values(session, night, job)
        found = compare(
            job.state,
            job.verdict,
            before,
            now,
            has_standing=night.standing_recipe_id is not None,
            is_minimized=job.resolved["objective"]["direction"] == "minimize",
        )
        better = schedules.proven_recipe(session, job.id) if job.verdict == "recommended" else None
        night.comparison = {**asdict(found), "values": now, "recipe_id": better.id if better else None}
        if better is not None and job.state == "succeeded":
            schedule.standing_recipe_id = better.id
        if found.result in NEWS and schedule.webhook:
            told = {"due_at": night.due_at.isoformat(), **night.comparison}
            webhooks.tell(
                session, schedule.webhook, f"schedule.{found.result}", schedule=_named(schedule), comparison=told,
                job=webhooks.job_facts(session, job),
            )  # fmt: skip


def _take(session: Session, schedule: Schedule, found: Due) -> None:
    """Use up a due time; raises `_TakenError` when it was already, or when the schedule is not what it was."""
    mine = schedules.get(session, schedule.id, lock=True)
    if mine is None or mine.state != "active" or any(getattr(mine, rule) != getattr(schedule, rule) for rule in RULES):
        raise _TakenError
    mine.next_at = found.next
    if found.next is None:
        mine.state = "ended"


def _require_no_other(session: Session, schedule: Schedule) -> None:
    other = schedules.unended_job(session, schedule.id)
    if other is not None:
        raise _OverlapError(f"job {other.id} of the run before is still {other.state}")


def _require_short_queue(session: Session, schedule: Schedule) -> None:
    count = schedules.unended_jobs(session, schedule.id)
    if count >= MAX_QUEUED:
        raise _OverlapError(f"{count} runs before are still queued or running")


def _standing(session: Session, schedule: Schedule) -> Recipe | None:
    return None if schedule.standing_recipe_id is None else recipes.get(session, schedule.standing_recipe_id)


def _values(session: Session, night: Night, job: Job) -> tuple[list[float], list[float]]:
    """What the standing recipe reached when it was last measured, and what it reached as this run's baseline."""
    if night.standing_recipe_id is None:
        return [], []
    now = schedules.measured_values(session, job.id, None)
    last = schedules.last_measured(session, night)
    if last is not None and last.comparison is not None and last.comparison.get("values"):
        return list(last.comparison["values"]), now
    recipe = recipes.get(session, night.standing_recipe_id)
    return ([] if recipe is None else schedules.measured_values(session, recipe.job_id, recipe.trial)), now


def _missed(found: Due) -> str | None:
    if not found.missed:
        return None
    return f"{found.missed} earlier due time{'s' if found.missed > 1 else ''} had been missed"


def _named(schedule: Schedule) -> dict[str, str]:
    return {"id": schedule.id, "name": schedule.name}
