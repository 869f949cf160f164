"""What a study tells its runner, written to the database under the runner's lease: one transaction a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service import models
from service.database import Database, now
from service.store import events, frontiers, queue, recipes, trials
from service.store.events import EventDraft
from service.store.queue import Lease
from tuner.fit_plan import MAX_PROOFS
from tuner.jobspec import ResolvedJob
from tuner.records import (
    Confirmation,
    EarlierEnd,
    Finding,
    Outcome,
    Phase,
    Point,
    ProbeEnded,
    ProbeRecord,
    RecipeDraft,
    StopReason,
    StudyResult,
    TrialEnded,
    TrialStarted,
    Value,
)
from tuner.telemetry import merged

LOG_EVENT_CHARS = 4000
UNHAPPY = (Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)


class Recorder:
    """The observer of one attempt at one job. Any call raises `LeaseLostError` once the job is somebody else's.

    What is told twice counts once: an earlier attempt may have told it, or a transaction of ours whose commit was not
    answered before the connection broke.

    `check` is asked about once a second: it raises to end the study, or says whether the job is to be cancelled.
    """

    def __init__(
        self, database: Database, lease: Lease, job: models.Job, resolved: ResolvedJob, check: Callable[[], bool]
    ) -> None:
        self._database = database
        self._lease = lease
        self._job_id = lease.job_id
        self._workload = job.workload
        self._check = check
        self._is_minimized = resolved.objective.direction == "minimize"
        self._best = job.best_value
        self._context = {
            "name": resolved.name,
            "objective": f"{resolved.objective.direction} {resolved.objective.metric}",
            "fidelity": _horizon(resolved),
        }
        self._told: list[RecipeDraft] | None = None

    def job_decided(self, job: ResolvedJob) -> None:
        self._context["fidelity"] = _horizon(job)
        self._database.transact(lambda session: queue.fence(session, self._lease, resolved=job.to_json()))

    def learnt_from(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """What the search starts from, so that a later attempt starts from the same."""
        told = [dict(one) for one in jobs]
        self._database.transact(lambda session: queue.fence(session, self._lease, learnt_from=told))

    def phase_started(self, phase: Phase, total: int) -> None:
        changes: dict[str, Any] = {"phase": phase.value}
        if phase == Phase.SEARCH and total > 0:
            changes["total"] = total
        draft = ("phase", {"phase": phase.value, "total": total})
        self._database.transact(lambda session: queue.fence(session, self._lease, [draft], **changes))

    def fit_measured(self, fit: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        standing = dict(fit)
        data = {"phase": Phase.FIT.value, "total": MAX_PROOFS, "done": len(fit["proofs"]), "fit": _told(standing)}

        def work(session: Session) -> None:
            known = session.scalar(sa.select(models.Job.fit).where(models.Job.id == self._job_id))
            if known == standing:
                return queue.fence(session, self._lease)
            changes = _spend(probe) | ({"lost_leases": 0} if probe is not None else {})
            queue.fence(session, self._lease, [("phase", data)], fit=standing, **changes)
            frontiers.put_all(session, self._job_id, self._workload, fit)
            return None

        self._database.transact(work)

    def precision_measured(self, found: Mapping[str, Any], probe: ProbeRecord) -> None:
        seconds = probe.device_seconds
        self._log_once({"text": found["text"], "precision": dict(found), "device_seconds": seconds}, probe)

    def rates_tested(self, found: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        standing = dict(found)
        events: list[EventDraft] = []
        if probe is not None:
            events = [("phase", {"phase": Phase.SEARCH.value, "range_test": standing})]

        def work(session: Session) -> None:
            known = session.scalar(sa.select(models.Job.range_test).where(models.Job.id == self._job_id))
            if known is not None:  # told already; or made again, because its runner died before the study knew of it
                is_told = known["device_seconds"] == standing["device_seconds"]
                return queue.fence(session, self._lease, **({} if is_told else _spend(probe)))
            queue.fence(session, self._lease, events, range_test=standing, **_spend(probe))
            return None

        self._database.transact(work)

    def diagnosed(self, findings: Sequence[Finding], probe: ProbeRecord) -> None:
        said = ", ".join(finding.code for finding in findings) or "nothing"
        text = f"a run looked for the reason why nothing is recommended: {said} found"
        self._log_once({"text": text, "device_seconds": probe.device_seconds}, probe)

    def _log_once(self, data: Mapping[str, Any], probe: ProbeRecord) -> None:
        """What a run has come to that no row of its own tells."""

        def work(session: Session) -> None:
            if events.is_logged(session, self._job_id, data):
                return queue.fence(session, self._lease)
            queue.fence(session, self._lease, [("log", dict(data))], **_spend(probe))
            return None

        self._database.transact(work)

    def trial_started(self, started: TrialStarted) -> None:
        data = {
            "number": started.number,
            "state": "running",
            "is_baseline": started.is_baseline,
            "parameters": started.parameters,
            "derived": started.derived,
            "retry_of": started.retry_of,
        }

        def work(session: Session) -> None:
            if session.get(models.Trial, (self._job_id, started.number)) is not None:
                return queue.fence(session, self._lease)
            changes = {"baseline_trial": started.number} if started.is_baseline else {}
            queue.fence(session, self._lease, [("trial", data)], **changes)
            session.add(
                models.Trial(
                    job_id=self._job_id,
                    number=started.number,
                    is_baseline=started.is_baseline,
                    retry_of=started.retry_of,
                    parameters=dict(started.parameters),
                    derived=dict(started.derived),
                    seed=started.seed,
                    started_at=now(),
                )
            )
            return None

        self._database.transact(work)

    def probe_ended(self, number: int, ended: ProbeEnded) -> None:
        state = "paused" if ended.is_paused else "running"
        probe = ended.probe
        entry = stored_probe(probe, outcome=ended.outcome.value, reason=ended.reason) if probe else None
        data: dict[str, Any] = {"number": number, "state": state, "probe": ended.outcome.value, "reason": ended.reason}
        data |= {"derived": dict(ended.derived)}
        if ended.point is not None:
            data |= _where(ended.point) | _value(ended.point.value)

        def work(session: Session) -> None:
            row = session.get_one(models.Trial, (self._job_id, number))
            is_known = row.state == state if entry is None else entry in row.probes
            if is_known or row.state == "ended":
                return queue.fence(session, self._lease)
            queue.fence(session, self._lease, [("trial", data)], **_spend(probe), **_progress(ended.outcome))
            row.state = state
            row.derived = dict(ended.derived)
            if ended.point is not None:
                row.value, row.value_kind = ended.point.value.number, ended.point.value.kind
            if probe is not None and entry is not None:
                add_probe(session, row, probe, entry)
                row.log_tail = ended.log_tail
                row.warnings = dict(ended.warnings)
                row.health = dict(ended.health)
                row.memory = _memory(row, probe)
            return None

        self._database.transact(work)

    def trial_goes_on(self, number: int) -> None:
        def work(session: Session) -> None:
            row = session.get_one(models.Trial, (self._job_id, number))
            if row.state != "paused":
                return queue.fence(session, self._lease)
            queue.fence(session, self._lease, [("trial", {"number": number, "state": "running"})])
            row.state = "running"
            return None

        self._database.transact(work)

    def points_reported(self, number: int, points: Sequence[Point]) -> None:
        def work(session: Session) -> None:
            known = trials.indexes(session, self._job_id, number)
            fresh = [point for point in points if point.index not in known]
            queue.fence(session, self._lease, [_report_event(number, point) for point in fresh])
            trials.add_points(session, self._job_id, number, fresh)

        self._database.transact(work)

    def trial_noted(self, number: int, text: str) -> None:
        event: EventDraft = ("log", {"trial": number, "text": text})
        self._database.transact(lambda session: queue.fence(session, self._lease, [event]))

    def trial_ended(self, ended: TrialEnded) -> None:
        drafts = _end_events(ended)
        is_best = self._is_best(ended)

        def work(session: Session) -> None:
            row = session.get(models.Trial, (self._job_id, ended.number))
            if row is not None and row.state == "ended":
                return queue.fence(session, self._lease)
            changes = _spend(ended.probe) | _progress(ended.outcome)
            if is_best:
                changes |= {"best_trial": ended.number, "best_value": ended.value.number}
            queue.fence(session, self._lease, drafts, **changes)
            if row is None:  # its runner died before anything was known of it
                row = models.Trial(job_id=self._job_id, number=ended.number, parameters={}, derived={}, probes=[])
                session.add(row)
            row.state = "ended"
            row.outcome = ended.outcome.value
            row.reason = ended.reason
            row.value = ended.value.number
            row.value_kind = ended.value.kind
            row.ended_at = now()
            if ended.probe is not None or ended.log_tail or not row.probes:  # else another attempt has told it
                row.log_tail = ended.log_tail
                row.warnings = dict(ended.warnings)
                row.health = dict(ended.health)
            if ended.probe is not None:
                add_probe(session, row, ended.probe, stored_probe(ended.probe, outcome=ended.outcome.value))
                row.memory = _memory(row, ended.probe)
            return None

        self._database.transact(work)
        if is_best:
            self._best = ended.value.number

    def confirmation_ended(self, confirmation: Confirmation) -> None:
        data = {
            "trial": confirmation.trial,
            "confirmation": True,
            "is_baseline": confirmation.is_baseline,
            "seed": confirmation.seed,
            "outcome": confirmation.outcome.value,
            "reason": confirmation.reason,
            "split": confirmation.split,
            **_value(confirmation.value),
        }

        def work(session: Session) -> None:
            key = (self._job_id, confirmation.trial, confirmation.seed)
            if session.get(models.Confirmation, key) is not None:
                return queue.fence(session, self._lease)
            changes = _spend(confirmation.probe) | _progress(confirmation.outcome)
            queue.fence(session, self._lease, [("trial", data)], **changes)
            session.add(
                models.Confirmation(
                    job_id=self._job_id,
                    trial=confirmation.trial,
                    seed=confirmation.seed,
                    is_baseline=confirmation.is_baseline,
                    outcome=confirmation.outcome.value,
                    reason=confirmation.reason,
                    value=confirmation.value.number,
                    value_kind=confirmation.value.kind,
                    split=confirmation.split,
                    probe=None if confirmation.probe is None else stored_probe(confirmation.probe),
                    log_tail=confirmation.log_tail,
                )
            )
            return None

        self._database.transact(work)

    def recipes_found(self, recipes: Sequence[RecipeDraft]) -> None:
        drafts = list(recipes)
        self._database.transact(lambda session: self._replace_recipes(session, drafts, {}, []))
        self._told = drafts

    def stop_requested(self) -> StopReason | None:
        return StopReason.CANCELLED if self._check() else None

    def finish(self, result: StudyResult) -> None:
        """The job's end: state, verdict, reasons, recipes and the last event, all or nothing."""
        state = "succeeded"
        if result.failed:
            state = "failed"
        elif result.stop_reason == StopReason.CANCELLED:
            state = "cancelled"
        changes = {
            "verdict": result.verdict,
            "diagnosis": [asdict(finding) for finding in result.diagnosis],
            "error": result.error,
        }
        self._end(state, result.stop_reason, changes, list(result.recipes))

    def fail(self, error: str) -> None:
        """The job's end by an error of ours or of its environment; standing recipes stay."""
        self._end("failed", StopReason.ERROR, {"error": error, "verdict": None}, None)

    def _end(
        self, state: str, reason: StopReason, changes: Mapping[str, Any], drafts: list[RecipeDraft] | None
    ) -> None:
        ended = {
            "state": state,
            "verdict": changes["verdict"],
            "stop_reason": reason.value,
            "error": changes["error"],
        }
        all_changes = {
            **changes,
            "state": state,
            "stop_reason": reason.value,
            "phase": None,
            "ended_at": now(),
            "lease_owner": None,
            "lease_expires_at": None,
        }
        final: list[EventDraft] = [("state", {"state": state}), ("end", ended)]

        def work(session: Session) -> None:
            if drafts is None:
                queue.fence(session, self._lease, final, **all_changes)
            else:
                self._replace_recipes(session, drafts, all_changes, final)

        self._database.transact(work)

    def _replace_recipes(
        self,
        session: Session,
        drafts: Sequence[RecipeDraft],
        changes: Mapping[str, Any],
        further: Sequence[EventDraft],
    ) -> None:
        # The fence comes first: whoever has lost the lease must not touch the successor's recipes.
        queue.fence(session, self._lease)
        stored = recipes.replace(session, self._job_id, self._workload, drafts, self._context)
        told: list[EventDraft] = []
        if list(drafts) != self._told:
            told = [
                (
                    "recipe",
                    {
                        "id": recipe.id,
                        "trial": recipe.trial,
                        "rank": recipe.rank,
                        "status": recipe.status,
                        "value": recipe.value,
                        "parameters": recipe.parameters,
                    },
                )
                for recipe in stored
            ]
        queue.fence(session, self._lease, [*told, *further], **changes)

    def _is_best(self, ended: TrialEnded) -> bool:
        value = ended.value.number
        if ended.outcome != Outcome.OK or value is None:
            return False
        if self._best is None:
            return True
        return value < self._best if self._is_minimized else value > self._best


def earlier_confirmations(session: Session, job_id: str) -> list[Confirmation]:
    """What an earlier attempt has confirmed already, as `run_study` takes it."""
    return [
        Confirmation(
            trial=row.trial,
            is_baseline=row.is_baseline,
            seed=row.seed,
            outcome=Outcome(row.outcome),
            reason=row.reason,
            value=Value(row.value, row.value_kind),  # type: ignore[arg-type]
            split=row.split,
            probe=None if row.probe is None else ProbeRecord(**row.probe),
            log_tail=row.log_tail,
        )
        for row in session.scalars(trials.confirmations(job_id))
    ]


def earlier_ends(session: Session, job_id: str) -> dict[int, EarlierEnd]:
    """How the trials of earlier attempts ended, as `run_study` takes it."""
    positions = trials.last_positions(session, job_id)
    return {
        row.number: EarlierEnd(
            outcome=Outcome(row.outcome or Outcome.LOST),
            value=row.value,
            position=positions.get(row.number, 0.0),
            device_seconds=sum(float(probe["device_seconds"]) for probe in row.probes),
        )
        for row in trials.ended(session, job_id)
    }


def _horizon(job: ResolvedJob) -> str:
    return f"{job.fidelity.max:g} {job.fidelity.axis}" if job.fidelity.is_known else f"unknown {job.fidelity.axis}"


def _told(fit: Mapping[str, Any]) -> dict[str, Any]:
    """What an event says of phase `fit`: how it stands, and its last proof."""
    shown = {name: fit[name] for name in ("state", "reason", "micro_batch", "peak_bytes", "limit_bytes")}
    proofs = fit["proofs"] or (fit["without_checkpointing"] or {}).get("proofs")
    shown["checkpointing"] = fit["checkpointing"] and bool(fit["proofs"])
    shown["lowered_to"] = fit.get("lowered_to")
    return {**shown, "left_out": fit["left_out"], "proof": proofs[-1] if proofs else None}


def _spend(probe: ProbeRecord | None) -> dict[str, Any]:
    """The job's receipt with one more probe on it; one whose hardware nobody could look at counts as unmeasured."""
    if probe is None:
        return {}
    changes: dict[str, Any] = {"device_seconds": models.Job.device_seconds + probe.device_seconds}
    if probe.telemetry.get("is_simulated"):
        changes["is_simulated"] = True
    if probe.energy_j is not None:
        changes |= {"energy_j": models.Job.energy_j + probe.energy_j, "measured_runs": models.Job.measured_runs + 1}
    elif probe.seconds > 0:
        reason = probe.telemetry.get("energy_reason") or "no_answer"
        changes |= {"unmeasured_runs": models.Job.unmeasured_runs + 1, "energy_reason": str(reason)[:32]}
    return changes


def stored_probe(probe: ProbeRecord, **more: Any) -> dict[str, Any]:
    """A probe as its trial keeps it: the trace has a table of its own."""
    kept = asdict(probe)
    del kept["trace"]
    return {**kept, **more}


def add_probe(session: Session, row: models.Trial, probe: ProbeRecord, entry: Mapping[str, Any]) -> None:
    """One more probe of a trial: its record, the trial's telemetry over all of them, and its trace."""
    row.probes = [*row.probes, dict(entry)]
    row.telemetry = merged(each.get("telemetry") or {} for each in row.probes)
    if probe.trace:
        session.add(
            models.Trace(job_id=row.job_id, number=row.number, probe=len(row.probes) - 1, trace=dict(probe.trace))
        )


def _memory(row: models.Trial, probe: ProbeRecord) -> dict[str, Any]:
    """The peak of a trial over its probes."""
    peaks = [peak for peak in (row.memory.get("peak_bytes"), probe.peak_memory_bytes) if peak is not None]
    return {"peak_bytes": max(peaks, default=None), "device": probe.device}


def _report_event(number: int, point: Point) -> EventDraft:
    return ("report", {"trial": number, **_where(point), **_value(point.value)})


def _where(point: Point) -> dict[str, Any]:
    return {"index": point.index, "position": point.position, "step": point.step}


def _progress(outcome: Outcome) -> dict[str, Any]:
    """A run that ended: whatever killed earlier runners, it is not this job (see `queue`)."""
    return {} if outcome == Outcome.LOST else {"lost_leases": 0}


def _end_events(ended: TrialEnded) -> list[EventDraft]:
    data = {
        "number": ended.number,
        "state": "ended",
        "outcome": ended.outcome.value,
        "reason": ended.reason,
        **_value(ended.value),
    }
    drafts: list[EventDraft] = [("trial", data)]
    if ended.outcome in UNHAPPY and ended.log_tail:
        drafts.append(("log", {"trial": ended.number, "text": ended.log_tail[-LOG_EVENT_CHARS:]}))
    return drafts


def _value(value: Value) -> dict[str, Any]:
    return {"value": value.number, "value_kind": value.kind}
