"""Our search (`tuner.freeze_thaw`) in a job: between report indices and study numbers here, rungs and points there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tuner.assignment import SlotReport
from tuner.convergence import is_converged
from tuner.earlier_jobs import Learnt
from tuner.freeze_thaw import FreezeThaw, report_rungs
from tuner.jobspec import ResolvedJob
from tuner.policy import Standing, Verdict, seen_at
from tuner.recommendation import is_better
from tuner.records import Outcome, Point
from tuner.search import Candidate, Search, Seen
from tuner.unit_space import UnitSpace

WORST = float("inf")
PERSISTENT = 3
"""Trials that have to end one after the other with nothing more to gain before the search does."""
LEFT_ASIDE = "earlier jobs are not followed from here on: what they call poor does as well here as what they recommend"
LEFT_OUT = {Outcome.NO_METRIC, Outcome.LOST}
"""Ends that say nothing about a configuration."""
AS_WORST = {Outcome.DIVERGED, Outcome.OUT_OF_MEMORY, Outcome.CRASHED, Outcome.TIMED_OUT}
"""Ends that a neighbour of the configuration is likely to come to: losses that refuse what a high rate has made of the
weights crash there, and would do so again and again if that were forgotten."""


class OwnPolicy:
    """Pauses at rungs, goes on with the best; where a workload cannot be paused it stops instead.

    What diverged, crashed, took too long or ran out of memory counts as the worst value there is; what was lost is
    left out.
    """

    pauses = True

    def __init__(
        self,
        job: Callable[[], ResolvedJob],
        search: Search,
        tidy_up: Callable[[], None],
        learnt: Learnt | None = None,
        note: Callable[[int, str], None] = lambda _number, _text: None,
    ) -> None:
        """`note` is told what the search has found out, with the number of the trial that showed it."""
        one = job()
        self._job = job
        self._search = search
        self._tidy_up = tidy_up
        self._rungs = report_rungs(one.fidelity.reports)
        self._sign = 1.0 if one.objective.direction == "minimize" else -1.0
        seed = (one.seed + search.count) % 2**32  # after a death other numbers, as the same ones would repeat
        fractions = [index / one.fidelity.reports for index in self._rungs]
        history = None if learnt is None else learnt.history
        self._thaw = FreezeThaw(UnitSpace(one.space), seed, fractions, history=history)
        self._noise = None if learnt is None else learnt.noise
        self._note = note
        self._unpromising = 0
        self._trial: dict[int, int] = {}
        self._is_stuck = False

    def take_up(self, open_marks: Mapping[int, int]) -> None:
        for seen in self._search.seen():
            if seen.outcome is None and seen.number not in open_marks:
                continue
            last = open_marks.get(seen.number, self._rungs[-1])
            values = self._at_rungs(seen, last)
            is_over = seen.number not in open_marks
            trial = self._thaw.add(seen.parameters, runs_to_end=seen.is_baseline, values=values, is_over=is_over)
            self._trial[seen.number] = trial

    def _at_rungs(self, seen: Seen, last: int) -> list[float]:
        """The values of a trial at the rungs that it had reached by the report index `last`; lower is better."""
        if seen.outcome in LEFT_OUT:
            return []
        found: list[float] = []
        for rung in self._rungs:
            value = next((seen.curve[index] for index in sorted(seen.curve) if rung <= index <= last), None)
            if value is None:
                break
            found.append(self._sign * value)
        if seen.outcome == Outcome.OK and seen.value is not None:
            found += [self._sign * seen.value] * (len(self._rungs) - len(found))
        if seen.outcome in AS_WORST and len(found) < len(self._rungs):
            found.append(WORST)
        return found

    @property
    def is_converged(self) -> bool:
        return self._unpromising >= PERSISTENT

    def _look_ahead(self) -> None:
        """Whether more configurations are worth their compute, once more after each trial that ends."""
        if self._noise is None or self.is_converged:
            return
        gains_little = is_converged(self._thaw.expected_gain(), self._noise)
        self._unpromising = self._unpromising + 1 if gains_little else 0

    def next(self, may_start: bool) -> Candidate | int | None:
        if self._search.has_queued and may_start:
            return self._adopted(self._search.ask(self._tidy_up))
        step = self._thaw.propose(may_start)
        if step is None:
            return None
        if step.kind == "resume":
            return next(number for number, trial in self._trial.items() if trial == step.trial)
        if not may_start:  # it was proposed before, and something else came in between
            self._thaw.interrupt(step.trial)
            return None
        candidate = self._search.ask(self._tidy_up, step.key)
        if candidate.parameters != step.key:  # queued while a database was out of reach
            self._thaw.interrupt(step.trial)
            return self._adopted(candidate)
        self._trial[candidate.number] = step.trial
        return candidate

    def _adopted(self, candidate: Candidate) -> Candidate:
        trial = self._thaw.add(candidate.parameters, runs_to_end=candidate.is_baseline)
        self._thaw.trials[trial].is_running = True
        self._trial[candidate.number] = trial
        return candidate

    def judge(self, candidate: Candidate, report: SlotReport, may_start: bool) -> Verdict:
        trial = self._thaw.trials[self._trial[candidate.number]]
        doubted = self._thaw.doubts_history
        self._thaw.can_pause = report.can_pause and not self._is_stuck
        verdict: Verdict = "continue"
        for point in report.points:
            while not trial.is_over and point.index >= self._rungs[trial.rung + 1]:
                value = point.value.number
                verdict = self._thaw.observe(trial.number, WORST if value is None else self._sign * value, may_start)
        if self._thaw.doubts_history and not doubted:
            self._note(candidate.number, LEFT_ASIDE)
        trial.is_running = not trial.is_over  # also one that is to pause, until its state is there
        return verdict

    def reason(self, candidate: Candidate, point: Point) -> str:
        ahead = self._ahead_of(candidate.number)
        if ahead == 0:
            return f"{seen_at(self._job(), point)}, ahead of the others, and the search ended before it could go on"
        return f"{seen_at(self._job(), point)} is behind {ahead} other trial{'s' if ahead != 1 else ''}"

    def _ahead_of(self, number: int) -> int:
        """How many trials were better at the last rung of this one."""
        trial = self._thaw.trials[self._trial[number]]
        rung, value = trial.rung, trial.values[-1] if trial.values else WORST
        return sum(other.rung >= rung and other.values[rung] < value for other in self._thaw.trials if rung >= 0)

    def ended(self, number: int, outcome: Outcome, value: float | None) -> None:
        trial = self._thaw.trials[self._trial[number]]
        if outcome in LEFT_OUT:
            self._thaw.remove(trial.number)
        elif outcome == Outcome.OK and value is not None:
            self._thaw.can_pause = True  # else it would be judged once more
            while not trial.is_over:  # it came to its own end before the last rung
                self._thaw.observe(trial.number, self._sign * value)
        elif outcome in AS_WORST and not trial.is_over:
            self._thaw.observe(trial.number, WORST)
        self._thaw.close(trial.number)
        self._look_ahead()

    def is_paused(self, number: int) -> None:
        self._thaw.interrupt(self._trial[number])

    def cannot_pause(self) -> None:
        self._is_stuck = True

    def best_first(self, numbers: Sequence[int]) -> list[int]:
        order = {trial: place for place, trial in enumerate(self._thaw.ranking(len(self._thaw.trials)))}
        return sorted(numbers, key=lambda number: (order.get(self._trial[number], len(order)), number))

    def finalists(self, top: int) -> list[Standing]:
        numbers = {trial: number for number, trial in self._trial.items()}
        baselines = [trial for trial in self._thaw.trials if trial.runs_to_end]
        found: list[Standing] = []
        for ranked in self._thaw.ranking(len(self._thaw.trials)):
            trial = self._thaw.trials[ranked]
            baseline = next((one for one in baselines if one.rung >= trial.rung), None)
            is_awaited = baseline is None and any(not one.is_over for one in baselines)
            if ranked not in numbers or trial.runs_to_end or is_awaited:
                continue
            value = self._sign * trial.values[-1]
            base = None if baseline is None else self._sign * baseline.values[trial.rung]
            base = base if base is None or math.isfinite(base) else None
            if base is None or is_better(value, base, self._job().objective.direction):
                full_runs = self._rungs[trial.rung] / self._rungs[-1]
                found.append(Standing(numbers[ranked], value, base, full_runs))
            if len(found) == top:
                break
        return found
