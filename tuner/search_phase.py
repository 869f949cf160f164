"""Phase `search`: the baseline, then what the policy proposes, paused and stopped on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.checkpoints import Checkpoints
from tuner.jobspec import OWN_SEARCH
from tuner.once_more import OnceMore
from tuner.open_trial import OpenTrial
from tuner.phases import Context, Decision, last_value
from tuner.policy import Policy, StockPolicy
from tuner.recommendation import pace_of, seen_recipes
from tuner.records import (
    EarlierEnd,
    Outcome,
    ProbeEnded,
    RecipeDraft,
    StopReason,
    TrialEnded,
    TrialStarted,
    Value,
)
from tuner.search import Candidate, Closed, Kept
from tuner.seeds import trial_seed

FAILURES = {Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT}
MAX_FAILED = 3
"""Checkpoints in a row that could not be saved, or not be gone on from, before nothing is paused any more."""
MIB = 1 << 20


class SearchPhase:
    """Gives free slots what the policy wants until a cap is reached, the space is exhausted or too many trials fail."""

    def __init__(self, context: Context, checkpoints: Checkpoints) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._policy = policy_of(context, self._tidy_up)
        self._once_more = OnceMore(context)
        self._running: dict[str, OpenTrial] = {}
        self._noted: dict[int, set[str]] = {}
        self._pausing: set[str] = set()
        self._paused: dict[int, OpenTrial] = {}
        self._again: list[OpenTrial] = []
        self._failed_saves = self._failed_loads = 0
        self._failures_in_row = 0
        self._last_failure = ""
        self._fatal: str | None = None
        self._fatal_trial: int | None = None
        self.stop_reason: StopReason | None = None
        self.recipes: Sequence[RecipeDraft] = ()

    def begin(self, ends: Mapping[int, EarlierEnd]) -> None:
        """Close what a dead runner left open, but for `ends`, which the observer knows of, and what is paused."""
        self._take_up(ends)
        for closed in self._context.search.closed():
            self._check_horizon(closed.outcome, None)
        self._checkpoints.drop_others(self._paused)
        self._policy.take_up({trial.number: trial.mark.index for trial in self._paused.values() if trial.mark})
        self._announce()

    def _tidy_up(self) -> None:
        self._take_up({})

    def _take_up(self, ends: Mapping[int, EarlierEnd]) -> None:
        for left in self._context.search.left_open():
            if left.number in ends:
                continue
            kept = self._context.search.kept(left.number)
            if kept is not None and self._checkpoints.is_whole(left.number, kept.left_by):
                self._reopen(left, kept)
                continue
            self._tell_start(left, self._context.derive(left.parameters))  # which it may not have come to
            self._context.observer.trial_ended(lost_trial(left.number, "its runner stopped before it ended", None))
            self._checkpoints.drop(left.number)
        self._context.search.resume(ends)

    def _reopen(self, candidate: Candidate, kept: Kept) -> None:
        """Whether it was paused when its runner died, or ran on from there: it goes on from there."""
        context = self._context
        derived = context.derive(candidate.parameters)
        trial = OpenTrial(candidate, derived, kept.left_by, kept.device_seconds, kept.mark, kept.left_by)
        self._paused[trial.number] = trial
        self._checkpoints.keep_only(trial.number, kept.left_by)
        context.search.reopen(candidate)
        context.ledger.add_probe(trial.number, trial.device_seconds)
        context.ledger.pause(trial.number, trial.position)
        why = "its runner stopped; it goes on from its checkpoint"
        ended = ProbeEnded(Outcome.LOST, why, derived, None, kept.mark.point)
        context.observer.probe_ended(trial.number, ended)

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
        if self._again:
            return self._assign(self._again.pop(0))
        wanted = None if self._context.is_cancelled or self.has_failed else self._wanted()
        if wanted is None and not self._running:
            self._close_paused()
        return wanted

    def _wanted(self) -> Assignment | None:
        context = self._context
        if self._running and not context.job.fidelity.is_known:
            return None  # the first run shows alone how long a full run is
        reason = self._over()
        choice = None if context.ledger.search_is_cut() else self._policy.next(may_start=reason is None)
        if isinstance(choice, int):
            trial = self._paused.pop(choice)
            context.ledger.go_on(choice)
            context.observer.trial_goes_on(choice)
            return self._assign(trial)
        if choice is not None:
            self.stop_reason = None
            derived = context.derive(choice.parameters)
            self._tell_start(choice, derived)
            return self._assign(OpenTrial(choice, derived))
        if reason is not None or not self._running:
            self.stop_reason = reason or StopReason.SPACE_EXHAUSTED
        return None

    @property
    def pauses(self) -> bool:
        """Whether trials may be paused, if they can be and there is a place for their state."""
        return self._policy.pauses and self._context.job.limits.checkpoints_mib > 0

    def _assign(self, trial: OpenTrial) -> Assignment:
        trial.probes += 1
        seed = trial_seed(self._context.job.seed)
        parameters = trial.candidate.parameters
        probe = self._context.probe(trial.number, parameters, seed, "validation", trial.derived)
        place = None if trial.has_started_over else self._checkpoints.place(trial.number, trial.probes)
        if place is not None and self.pauses:
            probe["checkpoint_dir"] = place
        if trial.mark is not None:
            probe["resume_dir"] = self._checkpoints.place(trial.number, trial.left_by)
            probe["resume_at"] = trial.mark.resume_at
        self._running[trial.key] = trial
        self._once_more.started(trial.key, probe)
        return Assignment(trial.key, probe, mark=trial.mark)

    def _tell_start(self, candidate: Candidate, derived: Mapping[str, object]) -> None:
        self._context.observer.trial_started(
            TrialStarted(
                number=candidate.number,
                is_baseline=candidate.is_baseline,
                parameters=candidate.parameters,
                derived=derived,
                seed=trial_seed(self._context.job.seed),
                retry_of=candidate.retry_of,
            )
        )

    def _over(self) -> StopReason | None:
        """Why no further configuration is started."""
        context = self._context
        reason = context.ledger.may_start(len(self._running) + len(self._again))
        if reason is None and not context.search.has_queued and context.search.is_exhausted:
            return StopReason.SPACE_EXHAUSTED
        return StopReason.CONVERGED if reason is None and self._policy.is_converged else reason

    def on_report(self, key: str, report: SlotReport) -> Decision:
        context, trial = self._context, self._running[key]
        if report.end is not None and report.end.outcome == Outcome.OK and not context.job.fidelity.is_known:
            context.learn_horizon(report.position)
        noted = self._noted.setdefault(trial.number, set())
        for name in report.notes.keys() - noted:
            noted.add(name)
            context.observer.trial_noted(trial.number, report.notes[name])
        if report.points:
            context.observer.points_reported(trial.number, report.points)
        for point in report.points:
            context.search.report(trial.number, point)
        if report.end is not None:
            if report.points and report.end.outcome == Outcome.OK:
                self._policy.judge(trial.candidate, report, False)  # its curve is known only now that it has ended
            self._end(key, report, report.end)
            return Decision.CONTINUE
        return self._decide(key, trial, report)

    def _decide(self, key: str, trial: OpenTrial, report: SlotReport) -> Decision:
        candidate, last = trial.candidate, report.points[-1] if report.points else None
        if last is not None and last.index >= self._context.job.fidelity.reports:
            return Decision.CONTINUE  # it has all but ended; to cut it now would throw a full run away
        halt = self._halt_reason()
        if halt is not None:
            self._end(key, report, ProbeEnd(Outcome.CANCELLED, halt, last_value(report)))
            return Decision.STOP
        if last is None:
            return Decision.CONTINUE
        if trial.mark is not None:
            self._failed_loads = 0
        match self._policy.judge(candidate, report, self._over() is None):
            case "pause":
                self._pausing.add(key)
                return Decision.PAUSE
            case "stop":
                self._end(key, report, ProbeEnd(Outcome.PRUNED, self._policy.reason(candidate, last), last.value))
                return Decision.STOP
        return Decision.CONTINUE

    def _halt_reason(self) -> str | None:
        """Why running trials are to end now."""
        if self._context.is_cancelled:
            return "the job was cancelled"
        if self.has_failed:
            return "no trial can be run" if self._fatal else f"{self._failures_in_row} trials in a row failed"
        reason = self._context.ledger.search_is_cut()
        return f"the budget is spent (budget.{reason})" if reason else None

    def _end(self, key: str, report: SlotReport, end: ProbeEnd) -> None:
        trial = self._running.pop(key)
        trial.probe_over(report)
        was_pausing = key in self._pausing
        self._pausing.discard(key)
        if end.outcome == Outcome.PAUSED and not self._checkpoints.is_whole(trial.number, trial.probes):
            end = replace(end, reason="it is not where this runner could see it: X5TUNE_HOME has to be shared")
        elif end.outcome == Outcome.PAUSED and report.mark is not None:
            self._pause(trial, Kept(report.mark, trial.probes, trial.device_seconds), report)
            return
        if end.is_fatal and self._fatal is not None:
            # The same import error in another slot: it is told once.
            end = ProbeEnd(Outcome.CANCELLED, f"no trial can be run, as trial {self._fatal_trial} has shown", end.value)
            trial.log_tail = ""
        is_over = self._context.is_cancelled or self.has_failed
        if was_pausing and end.outcome != Outcome.CANCELLED:
            end = self._save_failed(end)
        elif self._once_more.is_due(key, trial.number, end, is_over=is_over):
            self._start_over(trial, report, end, end.reason)
            return
        elif self._has_not_resumed(trial, report, end) and not is_over:
            self._load_failed(trial)
            why = f"it could not go on from its checkpoint, so it starts over: {end.reason}"
            self._start_over(trial, report, end, why)
            return
        if end.outcome == Outcome.OK and not end.value.is_finite:
            end = ProbeEnd(Outcome.NO_METRIC, "it ended without a finite value", end.value)
        self._close(trial, end, report.position, report)
        self._count_failures(trial.number, end)
        self._check_horizon(end.outcome, end.reason)
        self._announce()

    def _close(self, trial: OpenTrial, end: ProbeEnd, position: float, report: SlotReport | None = None) -> None:
        """The trial is over."""
        context = self._context
        # The observer first: it refuses a runner that has lost its lease, which then must not write the study either.
        context.observer.trial_ended(
            TrialEnded(
                number=trial.number,
                outcome=end.outcome,
                reason=end.reason,
                value=end.value,
                log_tail=trial.log_tail,
                probe=report.probe if report else None,
                warnings=trial.warnings,
                health=trial.health,
            )
        )
        value = end.value.number if end.outcome == Outcome.OK else None
        closed = context.search.tell(
            trial.number,
            end.outcome,
            value,
            full_runs=min(1.0, position / context.job.fidelity.max),
            device_seconds=trial.device_seconds,
            pace=pace_of(trial.health),
        )
        self._policy.ended(trial.number, end.outcome, value)
        self._checkpoints.drop(trial.number)
        context.ledger.add_trial(closed)
        context.search.remember_seconds(context.ledger.seconds)

    def _pause(self, trial: OpenTrial, kept: Kept, report: SlotReport) -> None:
        """Its state is there: the slot is free, and the trial waits."""
        context, number = self._context, trial.number
        self._failed_saves = self._failures_in_row = 0
        trial.mark, trial.left_by = kept.mark, kept.left_by
        context.observer.probe_ended(number, trial.ended(Outcome.PAUSED, None, report.probe, kept.mark.point))
        context.search.pause(number, kept)
        self._checkpoints.keep_only(number, kept.left_by)
        self._paused[number] = trial
        self._policy.is_paused(number)
        context.ledger.add_probe(number, report.probe.device_seconds)
        context.ledger.pause(number, trial.position)
        context.search.remember_seconds(context.ledger.seconds)
        self._make_room()
        self._announce()

    def _make_room(self) -> None:
        """Keep the checkpoints within their limit: of the paused trials the worst give theirs up, and are over."""
        limit = self._context.job.limits.checkpoints_mib
        sizes = {number: self._checkpoints.size_bytes(number) / MIB for number in self._paused}
        if any(size > limit for size in sizes.values()):
            self._policy.cannot_pause()  # nothing that has to make room at once is worth its pause
        for number in reversed(self._policy.best_first(list(sizes))):
            if sum(sizes.values()) <= limit:
                return
            del sizes[number]
            self._give_up(number, f"its checkpoint had to make room (limits.checkpoints_mib = {limit:g})")

    def _give_up(self, number: int, why: str) -> None:
        trial = self._paused.pop(number)
        assert trial.mark is not None
        reason = f"paused at {trial.position / self._context.job.fidelity.max:.0%} of its length: {why}"
        self._close(trial, ProbeEnd(Outcome.PRUNED, reason, trial.value), trial.position)

    def _close_paused(self) -> None:
        """The search is over: nobody will go on with what is paused."""
        halt = "the job was cancelled" if self._context.is_cancelled else "the job has failed"
        is_stopped = self._context.is_cancelled or self.has_failed
        for trial in list(self._paused.values()):
            if is_stopped:
                del self._paused[trial.number]
                self._close(trial, ProbeEnd(Outcome.CANCELLED, halt, trial.value), trial.position)
            elif trial.mark is not None:
                self._give_up(trial.number, self._policy.reason(trial.candidate, trial.mark.point))

    def _save_failed(self, end: ProbeEnd) -> ProbeEnd:
        """Its probe has ended without leaving its state: what that was about to be paused is stopped instead."""
        self._failed_saves += 1
        if self._failed_saves >= MAX_FAILED:
            self._policy.cannot_pause()
        reason = f"it was to be paused, but its checkpoint could not be saved: {end.reason or end.outcome}"
        return ProbeEnd(Outcome.PRUNED, reason, end.value)

    def _load_failed(self, trial: OpenTrial) -> None:
        """What it has left is of no use, and what it would leave next may be none either: it is not paused again."""
        trial.has_started_over = True
        self._failed_loads += 1
        if self._failed_loads >= MAX_FAILED:
            self._policy.cannot_pause()

    def _has_not_resumed(self, trial: OpenTrial, report: SlotReport, end: ProbeEnd) -> bool:
        """Whether a probe that was to go on from a checkpoint failed before its first report, the first time."""
        if trial.mark is None or trial.has_started_over or end.outcome not in FAILURES:
            return False
        return report.position <= trial.mark.position

    def _start_over(self, trial: OpenTrial, report: SlotReport, end: ProbeEnd, reason: str | None) -> None:
        """Another probe of the trial starts from the beginning, with what fits by now."""
        trial.start_over()
        trial.derived = self._context.derive(trial.candidate.parameters)
        self._context.ledger.add_probe(trial.number, report.probe.device_seconds)
        self._context.observer.probe_ended(trial.number, trial.ended(end.outcome, reason, report.probe))
        self._again.append(trial)

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
        context, trial = self._context, self._running.pop(key)
        self._pausing.discard(key)
        report = context.last_reports.get(key)
        if report is not None:
            trial.probe_over(report)
        if trial.mark is not None and self._checkpoints.is_whole(trial.number, trial.left_by):
            self._wait_again(trial, reason, report)
            return
        context.observer.trial_ended(lost_trial(trial.number, reason, report))
        closed = context.search.lose(trial.number, trial.device_seconds)
        self._policy.ended(trial.number, Outcome.LOST, None)
        self._checkpoints.drop(trial.number)
        context.ledger.add_trial(closed)

    def _wait_again(self, trial: OpenTrial, reason: str, report: SlotReport | None) -> None:
        """A trial whose slot died on the way is where it was paused before."""
        probe = report.probe if report else None
        self._context.observer.probe_ended(trial.number, trial.ended(Outcome.LOST, reason, probe, trial.point))
        self._paused[trial.number] = trial
        self._context.ledger.add_probe(trial.number, probe.device_seconds if probe else 0.0)
        self._context.ledger.pause(trial.number, trial.position)
        self._policy.is_paused(trial.number)

    def finalists(self, top: int) -> list[tuple[Closed, float | None]]:
        """Up to `top` trials to recommend, the best first, each with the baseline's value where its own was seen."""
        closed = {trial.number: trial for trial in self._context.search.closed()}
        open_trials = {trial.number: trial for trial in [*self._running.values(), *self._paused.values(), *self._again]}
        found = []
        for standing in self._policy.finalists(top):
            known = closed.get(standing.number) or seen_so_far(open_trials[standing.number])
            seen = replace(known, value=standing.value, full_runs=standing.full_runs)
            found.append((seen, standing.baseline_value))
        return found

    def _announce(self) -> None:
        """Say what the search recommends so far whenever that changes."""
        context, job = self._context, self._context.job
        drafts = seen_recipes(
            self.finalists(max(1, job.confirm.top)),
            job.objective.direction,
            context.device.name,
            derived=context.derive,
            frontier=context.frontier,
        )
        if [_seen_of(draft) for draft in drafts] != [_seen_of(recipe) for recipe in self.recipes]:
            self.recipes = drafts
            context.observer.recipes_found(drafts)


def policy_of(context: Context, tidy_up: Callable[[], None]) -> Policy:
    """Our own search where the job asks for it, else Optuna's."""
    if context.job.sampler != OWN_SEARCH:
        return StockPolicy(lambda: context.job, context.search, tidy_up)
    from tuner.own_policy import OwnPolicy

    return OwnPolicy(lambda: context.job, context.search, tidy_up, context.learnt, context.observer.trial_noted)


def _seen_of(draft: RecipeDraft) -> tuple[int, float, float | None]:
    """What a recommendation rests on: its trial, and the value that was seen after how much of a full run."""
    return draft.trial, draft.value, draft.spend.get("full_runs")


def seen_so_far(trial: OpenTrial) -> Closed:
    """An open trial as if it ended now."""
    candidate = trial.candidate
    seconds = trial.device_seconds
    return Closed(candidate.number, candidate.parameters, candidate.is_baseline, Outcome.PAUSED, None, 0.0, seconds)


def lost_trial(number: int, reason: str, last: SlotReport | None) -> TrialEnded:
    """The end of a trial whose probe nobody could follow to its end; `last` is what its slot said last."""
    if last is None:
        return TrialEnded(number, Outcome.LOST, reason, Value.of(None), "", None)
    return TrialEnded(
        number, Outcome.LOST, reason, last_value(last), last.log_tail, last.probe, last.warnings, last.health
    )
