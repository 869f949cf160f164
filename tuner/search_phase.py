"""Phase `search`: the baseline, then what the sampler proposes, pruned on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.jobspec import ResolvedJob
from tuner.phases import Context, Decision, last_value
from tuner.recommendation import provisional_recipes
from tuner.records import EarlierEnd, Outcome, Point, RecipeDraft, StopReason, TrialEnded, TrialStarted, Value
from tuner.search import Candidate
from tuner.seeds import trial_seed

FAILURES = {Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT}


class SearchPhase:
    """Asks the study for configurations until a cap is reached, the space is exhausted or too many trials fail."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._running: dict[str, Candidate] = {}
        self._micro_batch: dict[str, int] = {}
        self._noted: dict[str, set[str]] = {}
        self._again: list[Candidate] = []
        self._ran_again: set[int] = set()
        self._failures_in_row = 0
        self._last_failure = ""
        self._fatal: str | None = None
        self._fatal_trial: int | None = None
        self.stop_reason: StopReason | None = None
        self.recipes: Sequence[RecipeDraft] = ()

    def begin(self, ends: Mapping[int, EarlierEnd]) -> None:
        """Close what a dead runner left open, but for `ends`, which the observer knows of."""
        self._take_up(ends)
        for closed in self._context.search.closed():
            self._check_horizon(closed.outcome, None)
        self._announce()

    def _take_up(self, ends: Mapping[int, EarlierEnd]) -> None:
        for left in self._context.search.left_open():
            if left.number not in ends:
                self._tell_start(left)  # which it may not have come to
                self._context.observer.trial_ended(lost_trial(left.number, "its runner stopped before it ended", None))
        self._context.search.resume(ends)

    @property
    def is_idle(self) -> bool:
        return not self._running and not self._again

    @property
    def has_failed(self) -> bool:
        """Whether no trial can be run, or `limits.max_failures` in a row could not."""
        return self.stop_reason == StopReason.FAILURES

    @property
    def failure(self) -> str:
        """What to tell the user when the phase has failed."""
        return self._fatal or f"{self._failures_in_row} trials in a row failed; the last: {self._last_failure}"

    def next(self) -> Assignment | None:
        context = self._context
        if self._again:
            return self._assign(self._again.pop(0), "again")
        if context.is_cancelled or self.has_failed:
            return None
        if self._running and not context.job.fidelity.is_known:
            return None  # the first run shows alone how long a full run is
        self.stop_reason = self._over()
        if self.stop_reason is not None:
            return None
        candidate = context.search.ask(lambda: self._take_up({}))
        self._tell_start(candidate)
        return self._assign(candidate)

    def _assign(self, candidate: Candidate, suffix: str = "") -> Assignment:
        key = f"t{candidate.number}{suffix}"
        seed = trial_seed(self._context.job.seed)
        probe = self._context.probe(candidate.number, candidate.parameters, seed, "validation")
        self._running[key] = candidate
        self._micro_batch[key] = probe["derived"].get("micro_batch", 0)
        return Assignment(key, probe)

    def _tell_start(self, candidate: Candidate) -> None:
        self._context.observer.trial_started(
            TrialStarted(
                number=candidate.number,
                is_baseline=candidate.is_baseline,
                parameters=candidate.parameters,
                derived=self._context.derive(candidate.parameters),
                seed=trial_seed(self._context.job.seed),
                retry_of=candidate.retry_of,
            )
        )

    def _over(self) -> StopReason | None:
        context = self._context
        reason = context.ledger.may_start(len(self._running))
        if reason is None and not context.search.has_queued and context.search.is_exhausted:
            return StopReason.SPACE_EXHAUSTED
        return reason

    def on_report(self, key: str, report: SlotReport) -> Decision:
        context, candidate = self._context, self._running[key]
        if report.end is not None and report.end.outcome == Outcome.OK and not context.job.fidelity.is_known:
            context.learn_horizon(report.position)
        for name in report.notes.keys() - self._noted.setdefault(key, set()):
            self._noted[key].add(name)
            context.observer.trial_noted(candidate.number, report.notes[name])
        if report.points:
            context.observer.points_reported(candidate.number, report.points)
        for point in report.points:
            context.search.report(candidate.number, point)
        if report.end is not None:
            self._end(key, report, report.end)
            return Decision.CONTINUE
        end = self._verdict(candidate, report)
        if end is None:
            return Decision.CONTINUE
        self._end(key, report, end)
        return Decision.STOP

    def _verdict(self, candidate: Candidate, report: SlotReport) -> ProbeEnd | None:
        if report.points and report.points[-1].index >= self._context.job.fidelity.reports:
            return None  # it has all but ended; to cut it now would throw a full run away
        halt = self._halt_reason()
        if halt is not None:
            return ProbeEnd(Outcome.CANCELLED, halt, last_value(report))
        is_furthest = bool(report.points) and report.points[-1].position >= report.position
        if is_furthest and self._is_hopeless(candidate):
            point = report.points[-1]
            return ProbeEnd(Outcome.PRUNED, pruned_reason(self._context.job, point), point.value)
        return None

    def _is_hopeless(self, candidate: Candidate) -> bool:
        """Never the baseline; nor is this asked at the last point (Hyperband marks complete trials pruned)."""
        return not candidate.is_baseline and self._context.search.should_prune(candidate.number)

    def _halt_reason(self) -> str | None:
        """Why running trials are to end now."""
        if self._context.is_cancelled:
            return "the job was cancelled"
        if self.has_failed:
            return "no trial can be run" if self._fatal else f"{self._failures_in_row} trials in a row failed"
        reason = self._context.ledger.search_is_cut()
        return f"the budget is spent (budget.{reason})" if reason else None

    def _end(self, key: str, report: SlotReport, end: ProbeEnd) -> None:
        context, candidate = self._context, self._running.pop(key)
        if end.is_fatal and self._fatal is not None:
            # The same import error in another slot: it is told once.
            end = ProbeEnd(Outcome.CANCELLED, f"no trial can be run, as trial {self._fatal_trial} has shown", end.value)
            report = replace(report, log_tail="")
        if end.outcome == Outcome.OUT_OF_MEMORY and self._runs_again(key, candidate, report, end):
            return
        if end.outcome == Outcome.OK and not end.value.is_finite:
            end = ProbeEnd(Outcome.NO_METRIC, "it ended without a finite value", end.value)
        # The observer first: it refuses a runner that has lost its lease, which then must not write the study either.
        context.observer.trial_ended(
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
        closed = context.search.tell(
            candidate.number,
            end.outcome,
            end.value.number if end.outcome == Outcome.OK else None,
            full_runs=min(1.0, report.position / context.job.fidelity.max),
            device_seconds=report.probe.device_seconds,
        )
        context.ledger.add_trial(closed)
        context.search.remember_seconds(context.ledger.seconds)
        self._count_failures(candidate.number, end)
        self._check_horizon(end.outcome, end.reason)
        self._announce()

    def _check_horizon(self, outcome: Outcome, reason: str | None) -> None:
        """Give the job up when the run that was to show how long a full run is did not come to its end."""
        if self._context.job.fidelity.is_known or outcome in (Outcome.CANCELLED, Outcome.LOST):
            return
        what = f"{outcome}: {reason}" if reason else str(outcome)
        self._fatal = self._fatal or (
            "fidelity.max was left out, so the first run was to show how long a full run is, and it did not come to "
            f"its end ({what}). Mend that, give a baseline that trains, or give fidelity.max."
        )
        self.stop_reason = StopReason.FAILURES

    def _runs_again(self, key: str, candidate: Candidate, report: SlotReport, end: ProbeEnd) -> bool:
        """Whether the trial is tried once more, in smaller pieces, which need less memory."""
        context = self._context
        is_over = context.is_cancelled or self.has_failed or candidate.number in self._ran_again
        if is_over or not context.give_way(self._micro_batch[key]):
            return False
        self._ran_again.add(candidate.number)
        context.ledger.add_seconds(report.probe.device_seconds)
        derived = context.derive(candidate.parameters)
        context.observer.trial_runs_again(candidate.number, derived, end.outcome, end.reason, report.probe)
        self._again.append(candidate)
        return True

    def _count_failures(self, number: int, end: ProbeEnd) -> None:
        if end.outcome == Outcome.CANCELLED:
            return  # our own doing; says nothing about the configurations
        if end.outcome not in FAILURES:
            self._failures_in_row = 0
            return
        self._failures_in_row += 1
        self._last_failure = f"trial {number} {end.outcome}: {end.reason}"
        if end.is_fatal and self._fatal is None:
            self._fatal, self._fatal_trial = end.reason, number
        if self._fatal is not None or self._failures_in_row >= self._context.job.limits.max_failures:
            self.stop_reason = StopReason.FAILURES

    def on_lost(self, key: str, reason: str) -> None:
        context, candidate = self._context, self._running.pop(key)
        report = context.last_reports.get(key)
        context.observer.trial_ended(lost_trial(candidate.number, reason, report))
        closed = context.search.lose(candidate.number, report.probe.device_seconds if report else 0.0)
        context.ledger.add_trial(closed)

    def _announce(self) -> None:
        """Say what the search recommends so far whenever that changes."""
        context, job = self._context, self._context.job
        drafts = provisional_recipes(
            context.search.closed(),
            job.objective.direction,
            job.confirm.top,
            context.device.name,
            processes=job.resources.processes,
            frontier=context.frontier,
        )
        if [draft.trial for draft in drafts] != [recipe.trial for recipe in self.recipes]:
            self.recipes = drafts
            context.observer.recipes_found(drafts)


def lost_trial(number: int, reason: str, last: SlotReport | None) -> TrialEnded:
    """The end of a trial whose probe nobody could follow to its end; `last` is what its slot said last."""
    if last is None:
        return TrialEnded(number, Outcome.LOST, reason, Value.of(None), "", None)
    return TrialEnded(
        number, Outcome.LOST, reason, last_value(last), last.log_tail, last.probe, last.warnings, last.health
    )


def pruned_reason(job: ResolvedJob, point: Point) -> str:
    """Why a trial was pruned, in words."""
    at = f"report {point.index} of {job.fidelity.reports}"
    return f"{job.objective.metric} = {point.value.number:.6g} at {at} is behind the other trials (pruner {job.pruner})"
