"""The one who decides in a study: what runs next, what goes on, when a phase ends. Knows nothing of Ray.

Called from one thread with what slots report; time and device come in from outside, so a whole study can be played
through in a test without a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.budget import Reserve, Spent, exhausted, may_start
from tuner.confirm_plan import ConfirmPlan, PlannedRun
from tuner.derivation import derive
from tuner.device import Device
from tuner.errors import TunerError
from tuner.jobspec import ResolvedJob
from tuner.recommendation import baseline_of, confirmed_recipes, diagnose, finalists, provisional_recipes
from tuner.records import (
    Confirmation,
    Observer,
    Outcome,
    Phase,
    Point,
    RecipeDraft,
    StopReason,
    StudyResult,
    TrialEnded,
    TrialStarted,
    Value,
)
from tuner.search import Candidate, Closed, Search
from tuner.seeds import trial_seed

FAILURES = {Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT}
MAX_LOST_IN_ROW = 8
CONFIRM_SHARE = 0.7  # confirmation may be promised at most this share of a budget; else the search would starve


class SlotsDyingError(TunerError):
    """Slots die faster than they finish runs: something is wrong with the machine, not with a configuration."""


class Decision(StrEnum):
    """What a slot's run does after a report."""

    CONTINUE = "continue"
    STOP = "stop"


@dataclass
class _Active:
    """A run that is in a slot now."""

    key: str
    candidate: Candidate | None
    planned: PlannedRun | None
    last: SlotReport | None = None

    @property
    def device_seconds(self) -> float:
        return self.last.probe.device_seconds if self.last else 0.0


class Coordinator:
    """Drives one study through its phases; `next` gives out work, `on_report` judges it."""

    def __init__(
        self,
        job: ResolvedJob,
        job_id: str,
        search: Search,
        observer: Observer,
        device: Device,
        slots: int,
        confirmations: Sequence[Confirmation] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job = job
        self._job_id = job_id
        self._search = search
        self._observer = observer
        self._device = device
        self._slots = slots
        self._clock = clock
        self._earlier_seconds = search.earlier_seconds
        self._started_at = clock()
        self._active: dict[str, _Active] = {}
        self._phase = Phase.SEARCH
        self._plan: ConfirmPlan | None = None
        self._confirmations = list(confirmations)
        self._stop_reason: StopReason | None = None
        self._cancelled = False
        self._asked_at = float("-inf")
        self._failures_in_row = 0
        self._lost_in_row = 0
        self._last_failure = ""
        self._standing: list[int] = []
        self._recipes: list[RecipeDraft] = []
        self._full_run_seconds: float | None = None
        self._counter = 0
        self.is_finished = False
        for closed in search.closed():
            self._learn_duration(closed)

    def begin(self) -> None:
        """Take up the study: close what a dead runner left open and announce the phase."""
        for number in self._search.resume():
            self._observer.trial_ended(lost_trial(number, "its runner stopped before it ended"))
        self._observer.phase_started(Phase.SEARCH, self._job.budget.trials or 0)

    # What runs next

    def next(self) -> Assignment | None:
        """The next run for a free slot, or None: nothing now, or nothing ever again when `is_finished`."""
        self._check_stop()
        if self.is_finished or len(self._active) >= self._slots:
            return None
        if self._phase == Phase.SEARCH:
            candidate = self._next_candidate()
            if candidate is not None:
                return self._start_trial(candidate)
            if self._active:
                return None
            self._end_search()
        if self.is_finished:
            return None
        planned = self._next_planned()
        return self._start_confirmation(planned) if planned else None

    def _next_candidate(self) -> Candidate | None:
        if self._cancelled or self._stop_reason == StopReason.FAILURES:
            return None
        reason = may_start(self._job.budget, self._spent(), self._reserve())
        if reason is None and not self._search.has_queued and self._search.is_exhausted:
            reason = StopReason.SPACE_EXHAUSTED
        if reason is not None:
            self._stop_reason = self._stop_reason or reason
            return None
        self._stop_reason = None
        return self._search.ask()

    def _start_trial(self, candidate: Candidate) -> Assignment:
        derived, seed = derive(candidate.parameters), trial_seed(self._job.seed)
        self._observer.trial_started(
            TrialStarted(
                candidate.number, candidate.is_baseline, candidate.parameters, derived, seed, candidate.retry_of
            )
        )
        key = f"t{candidate.number}"
        self._active[key] = _Active(key, candidate, None)
        return Assignment(key, self._probe(candidate.number, candidate.parameters, seed, "validation"))

    def _start_confirmation(self, planned: PlannedRun) -> Assignment:
        self._counter += 1
        key = f"c{planned.candidate.number}-{planned.seed}-{self._counter}"
        self._active[key] = _Active(key, None, planned)
        probe = self._probe(planned.candidate.number, planned.candidate.parameters, planned.seed, "test")
        return Assignment(key, probe, judged=False)

    def _probe(self, trial: int, parameters: Any, seed: int, split: str) -> dict[str, Any]:
        fidelity = self._job.fidelity
        return {
            "parameters": dict(parameters),
            "derived": derive(parameters),
            "seed": seed,
            "fidelity": {"axis": fidelity.axis, "max": fidelity.max, "reports": fidelity.reports},
            "device": self._device.type,
            "precision": self._device.precision(self._job.precision),
            "trial": trial,
            "job_id": self._job_id,
            "split": split,
        }

    # What slots say

    def on_report(self, key: str, report: SlotReport) -> Decision:
        """Take in a slot's report and decide whether its run goes on."""
        active = self._active[key]
        active.last = report
        self._check_stop()
        if active.candidate is None:
            return self._on_confirmation(active, report)
        return self._on_trial(active, active.candidate, report)

    def on_lost(self, key: str, reason: str) -> None:
        """The slot of a run died; the run is lost, the configuration is tried once more."""
        active = self._active.pop(key, None)
        if active is None:
            return
        self._lost_in_row += 1
        if self._lost_in_row > MAX_LOST_IN_ROW:
            raise SlotsDyingError(f"{self._lost_in_row} runs in a row were lost; the last: {reason}")
        if active.candidate is not None:
            self._search.lose(active.candidate.number)
            self._observer.trial_ended(lost_trial(active.candidate.number, reason))
        elif active.planned is not None:
            self._record_confirmation(active, Outcome.LOST, reason, Value.of(None))

    def _on_trial(self, active: _Active, candidate: Candidate, report: SlotReport) -> Decision:
        number, reports = candidate.number, self._job.fidelity.reports
        for point in report.points:
            self._search.report(number, point)
        if report.points:
            self._observer.points_reported(number, report.points)
        if report.end is not None:
            if report.end.outcome == Outcome.LOST:
                self.on_lost(active.key, report.end.reason or "lost")
            else:
                self._lost_in_row = 0
                self._end_trial(active, candidate, report, report.end)
            return Decision.CONTINUE
        halt = self._halt_reason()
        if halt is not None:
            end = ProbeEnd(Outcome.CANCELLED, halt, last_value(report))
        elif report.points and self._is_hopeless(candidate, report.points[-1], reports):
            end = ProbeEnd(Outcome.PRUNED, pruned_reason(self._job, report.points[-1]), report.points[-1].value)
        else:
            return Decision.CONTINUE
        self._end_trial(active, candidate, report, end)
        return Decision.STOP

    def _is_hopeless(self, candidate: Candidate, point: Point, reports: int) -> bool:
        """Never at the last point (Hyperband marks complete trials pruned), never the baseline."""
        return not candidate.is_baseline and point.index < reports and self._search.should_prune(candidate.number)

    def _end_trial(self, active: _Active, candidate: Candidate, report: SlotReport, end: ProbeEnd) -> None:
        del self._active[active.key]
        share = min(1.0, report.position / self._job.fidelity.max)
        value = end.value.number if end.outcome == Outcome.OK else None
        if end.outcome == Outcome.OK and value is None:
            end = ProbeEnd(Outcome.NO_METRIC, "it ended without a finite value", end.value)
        self._search.tell(candidate.number, end.outcome, value, share, report.probe.device_seconds)
        self._search.remember_seconds(self._seconds())
        self._observer.trial_ended(
            TrialEnded(
                number=candidate.number,
                outcome=end.outcome,
                reason=end.reason,
                value=end.value,
                log_tail=report.log_tail,
                probe=report.probe,
                warnings=report.warnings,
                health=report.health,
            )
        )
        if end.outcome in FAILURES:
            self._failures_in_row += 1
            self._last_failure = f"trial {candidate.number} {end.outcome}: {end.reason}"
            if self._failures_in_row >= self._job.limits.max_failures:
                self._stop_reason = StopReason.FAILURES
        else:
            self._failures_in_row = 0
        closed = self._search.closed()
        self._learn_duration(closed[-1])
        self._announce(closed)

    def _announce(self, closed: Sequence[Closed]) -> None:
        """Say what the search recommends so far whenever that changes."""
        drafts = provisional_recipes(closed, self._job.objective.direction, self._job.confirm.top, self._device.name)
        numbers = [draft.trial for draft in drafts]
        if numbers != self._standing:
            self._standing, self._recipes = numbers, drafts
            self._observer.recipes_found(drafts)

    # Confirmation

    def _end_search(self) -> None:
        closed = self._search.closed()
        self._announce(closed)
        job = self._job
        candidates = finalists(closed, job.objective.direction, job.confirm.top)
        baseline = next((trial for trial in closed if trial.is_baseline and trial.outcome != Outcome.LOST), None)
        stopped = self._cancelled or self._stop_reason == StopReason.FAILURES
        if stopped or not job.confirm.runs or not candidates or baseline is None or not self._can_afford_confirmation():
            self._finish()
            return
        self._plan = ConfirmPlan(
            baseline, candidates, job.objective.direction, job.confirm.seeds, job.seed, self._confirmations
        )
        self._phase = Phase.CONFIRM
        self._observer.phase_started(Phase.CONFIRM, self._plan.total)

    def _next_planned(self) -> PlannedRun | None:
        plan = self._plan
        assert plan is not None
        running = {(a.planned.candidate.number, a.planned.seed) for a in self._active.values() if a.planned}
        if not self._cancelled and self._hard_stop() is None:
            for planned in plan.missing():
                if (planned.candidate.number, planned.seed) not in running:
                    return planned
        if self._active:
            return None
        if not self._cancelled and self._hard_stop() is None and self._may_extend(plan):
            self._observer.phase_started(Phase.CONFIRM, plan.total)
            return next(plan.missing(), None)
        self._finish()
        return None

    def _may_extend(self, plan: ConfirmPlan) -> bool:
        """Go to the second look only where the caps leave room for all of it."""
        more = (8 - plan.seeds) * (len(plan.candidates) + 1)
        reserve = Reserve.for_runs(more, self._full_run_seconds, self._device_share, self._slots)
        return exhausted(self._job.budget, self._spent(), reserve) is None and plan.extend()

    def _on_confirmation(self, active: _Active, report: SlotReport) -> Decision:
        if report.end is not None:
            if report.end.outcome == Outcome.LOST:
                self.on_lost(active.key, report.end.reason or "lost")
            else:
                self._lost_in_row = 0
                del self._active[active.key]
                self._record_confirmation(active, report.end.outcome, report.end.reason, report.end.value)
            return Decision.CONTINUE
        halt = "cancelled" if self._cancelled else self._hard_stop()
        if halt is None:
            return Decision.CONTINUE
        del self._active[active.key]
        self._record_confirmation(active, Outcome.CANCELLED, str(halt), last_value(report))
        return Decision.STOP

    def _record_confirmation(self, active: _Active, outcome: Outcome, reason: str | None, value: Value) -> None:
        planned, last = active.planned, active.last
        assert planned is not None
        lost_before = any(
            run.trial == planned.candidate.number and run.seed == planned.seed and run.outcome == Outcome.LOST
            for run in self._confirmations
        )
        if outcome == Outcome.LOST and lost_before:
            outcome, reason = Outcome.CRASHED, f"lost twice: {reason}"
        run = Confirmation(
            trial=planned.candidate.number,
            is_baseline=planned.candidate.is_baseline,
            seed=planned.seed,
            outcome=outcome,
            reason=reason,
            value=value,
            split="test",
            probe=last.probe if last else None,
            log_tail=last.log_tail if last else "",
        )
        self._confirmations.append(run)
        if self._plan is not None and self._plan.runs is not self._confirmations:
            self._plan.runs.append(run)
        if outcome != Outcome.LOST:
            self._search.remember_seconds(self._seconds())
            self._observer.confirmation_ended(run)

    # The end

    def _finish(self) -> None:
        self.is_finished = True
        if self._plan is not None and not self._cancelled:
            judgements = self._plan.judge()
            direction = self._job.objective.direction
            self._recipes = confirmed_recipes(
                self._plan.candidates, judgements, self._confirmations, direction, self._device.name
            )
            self._observer.recipes_found(self._recipes)

    def result(self) -> StudyResult:
        """What the study came to; call when `is_finished`."""
        reason = StopReason.CANCELLED if self._cancelled else self._stop_reason or StopReason.TRIALS
        spent = self._spent().device_seconds
        if reason == StopReason.FAILURES:
            message = f"{self._failures_in_row} trials in a row failed; the last: {self._last_failure}"
            return StudyResult(reason, None, self._recipes, [], spent, failed=True, error=message)
        if reason == StopReason.CANCELLED:
            return StudyResult(reason, None, self._recipes, [], spent)
        objective, closed = self._job.objective, self._search.closed()
        confirmed = self._plan is not None
        findings = diagnose(closed, self._recipes, objective.direction, objective.metric, confirmed)
        verdict = "no_recommendation" if findings or not self._recipes else "recommended"
        return StudyResult(reason, verdict, self._recipes, findings, spent)

    # What is spent

    @property
    def _device_share(self) -> float:
        return self._job.resources.gpus or 1.0

    def _seconds(self) -> float:
        return self._earlier_seconds + self._clock() - self._started_at

    def _spent(self) -> Spent:
        closed = self._search.closed()
        counted = sum(trial.outcome != Outcome.LOST for trial in closed)
        searching = [a for a in self._active.values() if a.candidate is not None]
        confirming = [run for run in self._confirmations if run.probe is not None]
        done = Spent(
            trials=counted + len(searching),
            full_runs=sum(t.full_runs for t in closed) + sum(run.outcome != Outcome.LOST for run in confirming),
            device_seconds=sum(t.device_seconds for t in closed)
            + sum(run.probe.device_seconds for run in confirming if run.probe),
            seconds=self._seconds(),
        )
        running = [a.last for a in self._active.values() if a.last]
        return done.plus(
            full_runs=sum(min(1.0, r.position / self._job.fidelity.max) for r in running),
            device_seconds=sum(r.probe.device_seconds for r in running),
        )

    def _reserve(self) -> Reserve:
        runs = self._job.confirm.runs
        whole = Reserve.for_runs(runs, self._full_run_seconds, self._device_share, self._slots)
        return whole if self._is_affordable(whole) else Reserve()

    def _is_affordable(self, whole: Reserve) -> bool:
        """Whether the budget can pay for confirmation and still leave something to search with."""
        budget = self._job.budget
        limits = [(budget.full_runs, whole.full_runs), (budget.seconds, whole.seconds)]
        if budget.device_hours is not None:
            limits.append((budget.device_hours * 3600, whole.device_seconds))
        if budget.cost is not None:
            limits.append((budget.cost.amount / budget.cost.per_device_hour * 3600, whole.device_seconds))
        return all(cap is None or need <= CONFIRM_SHARE * cap for cap, need in limits)

    def _can_afford_confirmation(self) -> bool:
        whole = Reserve.for_runs(self._job.confirm.runs, self._full_run_seconds, self._device_share, self._slots)
        return self._is_affordable(whole)

    def _learn_duration(self, closed: Closed) -> None:
        if closed.outcome == Outcome.OK and closed.device_seconds > 0:
            seconds = closed.device_seconds / self._device_share
            self._full_run_seconds = max(self._full_run_seconds or 0.0, seconds)

    # Stopping

    def _check_stop(self) -> None:
        """Ask the observer about once a second whether the job was cancelled; its exceptions pass through."""
        now = self._clock()
        if now - self._asked_at >= 1.0:
            self._asked_at = now
            if self._observer.stop_requested() is not None:
                self._cancelled = True

    def _halt_reason(self) -> str | None:
        """Why running trials are to end now."""
        if self._cancelled:
            return "the job was cancelled"
        if self._stop_reason == StopReason.FAILURES:
            return f"{self._failures_in_row} trials in a row failed"
        reason = exhausted(self._job.budget, self._spent(), self._reserve())
        if reason is None:
            return None
        self._stop_reason = self._stop_reason or reason
        return f"the budget is spent (budget.{reason})"

    def _hard_stop(self) -> str | None:
        """Why even confirmation is to end: a cap is reached with nothing in reserve."""
        reason = exhausted(self._job.budget, self._spent(), Reserve())
        return f"the budget is spent (budget.{reason})" if reason else None


def lost_trial(number: int, reason: str) -> TrialEnded:
    """The end of a trial whose probe nobody could follow to its end."""
    return TrialEnded(number, Outcome.LOST, reason, Value.of(None), "", None)


def last_value(report: SlotReport) -> Value:
    """The value of a report's last point."""
    return report.points[-1].value if report.points else Value.of(None)


def pruned_reason(job: ResolvedJob, point: Point) -> str:
    """Why a trial was pruned, in words."""
    shown = "missing" if point.value.number is None else f"{point.value.number:.6g}"
    at = f"report {point.index} of {job.fidelity.reports}"
    return f"{job.objective.metric} = {shown} at {at} is behind the other trials (pruner {job.pruner})"

