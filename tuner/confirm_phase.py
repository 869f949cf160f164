"""Phase `confirm`: finalists and baseline to the full horizon, on paired fresh seeds and the untouched test split."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.confirm_plan import ConfirmPlan, PlannedRun
from tuner.once_more import OnceMore
from tuner.phases import Context, Decision, last_value
from tuner.recommendation import confirmed_recipes
from tuner.records import Confirmation, Outcome, Phase, RecipeDraft, Value
from tuner.search import Closed


class ConfirmPhase:
    """Works through a plan of runs outside the study; `earlier` are those of a former attempt at the job."""

    def __init__(
        self, context: Context, baseline: Closed, candidates: Sequence[Closed], earlier: Sequence[Confirmation]
    ) -> None:
        job = context.job
        self._context = context
        self._running: dict[str, PlannedRun] = {}
        self._once_more = OnceMore(context)
        self._tries = 0
        self._split = "test" if job.code is None else "validation"  # the user's own code has no test split of ours
        self._plan = ConfirmPlan(
            baseline, candidates, job.objective.direction, job.confirm.seeds, job.seed, list(earlier)
        )

    def begin(self) -> None:
        """Announce the phase."""
        self._context.observer.phase_started(Phase.CONFIRM, self._plan.total)

    @property
    def is_idle(self) -> bool:
        return not self._running

    def next(self) -> Assignment | None:
        if self._halt_reason() is not None:
            return None
        planned = self._next_planned()
        if planned is None:
            return None
        self._tries += 1
        key = f"c{planned.candidate.number}-{planned.seed}-{self._tries}"
        self._running[key] = planned
        parameters = planned.candidate.parameters
        probe = self._context.probe(planned.candidate.number, parameters, planned.seed, self._split)
        self._once_more.started(key, probe)
        return Assignment(key, probe, judged=False)

    def _next_planned(self) -> PlannedRun | None:
        running = {(run.candidate.number, run.seed) for run in self._running.values()}
        for planned in self._plan.missing():
            if (planned.candidate.number, planned.seed) not in running:
                return planned
        if running or not self._context.ledger.has_room_for(self._plan.extension) or not self._plan.extend():
            return None
        self.begin()
        return next(self._plan.missing(), None)

    def on_report(self, key: str, report: SlotReport) -> Decision:
        if report.end is not None and self._runs_again(key, report, report.end):
            return Decision.CONTINUE
        if report.end is not None:
            self._record(key, report, report.end)
            return Decision.CONTINUE
        halt = self._halt_reason()
        if halt is None:
            return Decision.CONTINUE
        self._record(key, report, ProbeEnd(Outcome.CANCELLED, halt, last_value(report)))
        return Decision.STOP

    def _runs_again(self, key: str, report: SlotReport, end: ProbeEnd) -> bool:
        """Whether a run that was out of memory is made once more, in smaller pieces: it is still missing."""
        planned = self._running[key]
        run = (planned.candidate.number, planned.seed)
        if not self._once_more.is_due(key, run, end, is_over=self._halt_reason() is not None):
            return False
        del self._running[key]
        self._context.ledger.add_seconds(report.probe.device_seconds)
        return True

    def on_lost(self, key: str, reason: str) -> None:
        last = self._context.last_reports.get(key)
        if self._plan.was_lost(self._running[key]):
            self._record(key, last, ProbeEnd(Outcome.CRASHED, f"lost twice: {reason}", Value.of(None)))
        else:
            self._record(key, last, ProbeEnd(Outcome.LOST, reason, Value.of(None)))

    def _record(self, key: str, report: SlotReport | None, end: ProbeEnd) -> None:
        planned = self._running.pop(key)
        run = Confirmation(
            trial=planned.candidate.number,
            is_baseline=planned.candidate.is_baseline,
            seed=planned.seed,
            outcome=end.outcome,
            reason=end.reason,
            value=end.value,
            split=self._split,
            probe=report.probe if report else None,
            log_tail=report.log_tail if report else "",
        )
        self._plan.runs.append(run)
        self._context.ledger.add_confirmation(run)
        self._context.search.remember_seconds(self._context.ledger.seconds)
        if run.outcome != Outcome.LOST:
            self._context.observer.confirmation_ended(run)

    def _halt_reason(self) -> str | None:
        if self._context.is_cancelled:
            return "the job was cancelled"
        reason = self._context.ledger.is_spent()
        return f"the budget is spent (budget.{reason})" if reason else None

    def recipes(self) -> list[RecipeDraft]:
        """The finalists with what the runs so far say about them."""
        plan = self._plan
        context = self._context
        return confirmed_recipes(
            plan.candidates,
            plan.judge(),
            plan.runs,
            context.job.objective.direction,
            context.device.name,
            derived=context.derive,
            frontier=context.frontier,
        )
