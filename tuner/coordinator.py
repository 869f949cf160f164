"""The one who decides in a study: which phase it is in, what runs next, what goes on. Knows nothing of Ray.

Called from one thread with what slots report; time and device come in from outside, so a whole study can be played
through in a test without a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.checkpoints import PROOF, Checkpoints
from tuner.confirm_phase import ConfirmPhase
from tuner.device import Device
from tuner.diagnose_phase import DiagnosePhase
from tuner.earlier_jobs import Learnt
from tuner.edges import edge_of_space
from tuner.errors import TunerError
from tuner.fit_phase import FitPhase
from tuner.fit_subject import is_our_loop, subject_of
from tuner.jobspec import ResolvedJob
from tuner.ledger import Ledger
from tuner.phases import Context, Decision, PhaseRuns
from tuner.precision_phase import PrecisionPhase, wants_measuring
from tuner.range_phase import RangePhase
from tuner.recommendation import diagnose, failures, memory_growth, ranked
from tuner.records import (
    Confirmation,
    EarlierEnd,
    Finding,
    Observer,
    Outcome,
    Phase,
    ProbeRecord,
    RecipeDraft,
    StopReason,
    StudyResult,
    Value,
)
from tuner.search import Closed, Search
from tuner.search_phase import SearchPhase

MAX_LOST_IN_ROW = 8
STOP_CHECK_S = 1.0


class SlotsDyingError(TunerError):
    """Slots die faster than they finish runs: something is wrong with the machine, not with a configuration."""


class EnergyUnknownError(TunerError):
    """The job caps its energy, and its device does not tell how much it takes."""


class Coordinator:
    """Drives one study through its phases; `next` gives out runs, `on_report` judges them."""

    def __init__(
        self,
        job: ResolvedJob,
        job_id: str,
        search: Search,
        observer: Observer,
        *,
        device: Device,
        slots: int,
        confirmations: Sequence[Confirmation] = (),
        ends: Mapping[int, EarlierEnd] | None = None,
        fit: Mapping[str, Any] | None = None,
        rates: Mapping[str, Any] | None = None,
        frontiers: Sequence[Mapping[str, Any]] = (),
        earlier_energy_j: float = 0.0,
        checkpoints: Checkpoints | None = None,
        learnt: Learnt | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._clock = clock
        self._earlier = confirmations
        self._earlier_ends = ends or {}
        self._asked_at = float("-inf")
        self._lost_in_row = 0
        self._phase_of: dict[str, PhaseRuns] = {}
        self._is_fitting = False
        self._memory_growth: str | None = None
        reports: dict[str, SlotReport] = {}
        ledger = Ledger(
            job,
            slots=slots,
            earlier_seconds=search.earlier_seconds,
            earlier_energy_j=earlier_energy_j,
            running=reports.values,
            clock=clock,
        )
        self._context = Context(job, job_id, search, observer, device, ledger, last_reports=reports, learnt=learnt)
        self._checkpoints = checkpoints or Checkpoints(None)
        self._earlier_fit, self._earlier_rates, self._frontiers = fit, rates, frontiers
        self._precision_phase = PrecisionPhase(self._context) if wants_measuring(job, device) else None
        self._fit_phase: FitPhase | None = None
        self._range_phase: RangePhase | None = None
        self._search_phase = SearchPhase(self._context, self._checkpoints)
        self._confirm_phase: ConfirmPhase | None = None
        self._diagnose_phase: DiagnosePhase | None = None
        self.is_finished = False

    def begin(self) -> None:
        """Take up the study where an earlier attempt left it."""
        if self._precision_phase is None:
            self._after_precision()

    def _after_precision(self) -> None:
        """Go on to what fits, in the precision that is decided."""
        self._precision_phase = None
        context = self._context
        if context.is_cancelled:
            self.is_finished = True
            return
        subject = subject_of(context.job, context.device)
        place = self._checkpoints.place(PROOF, 0) if self._search_phase.pauses else None
        self._fit_phase = FitPhase(context, subject, self._earlier_fit, self._frontiers, place) if subject else None
        if self._fit_phase is not None and not self._fit_phase.is_settled:
            self._is_fitting = True
            self._fit_phase.begin()
        else:
            self._after_fit()

    def _after_fit(self) -> None:
        """Go on to the search with what fits, or finish where nothing does."""
        self._is_fitting = False
        self._checkpoints.drop(PROOF)
        if self._fit_phase is not None:
            self._context.frontier = self._fit_phase.frontier
            self._context.give_way = self._fit_phase.give_way
            if self._context.is_cancelled or self._fit_phase.is_infeasible:
                self.is_finished = True
                return
            if self._context.leave_out(self._fit_phase.job or self._context.job):
                self._search_phase = SearchPhase(self._context, self._checkpoints)
        self._search_phase.begin(self._earlier_ends)
        for closed in self._context.search.closed():
            self._context.ledger.add_trial(closed)
        for run in self._earlier:
            self._context.ledger.add_confirmation(run)
        self._context.observer.phase_started(Phase.SEARCH, self._context.job.budget.trials or 0)
        self._range_phase = RangePhase(self._context, self._earlier_rates)

    @property
    def _phase(self) -> PhaseRuns:
        if self._precision_phase is not None:
            return self._precision_phase
        if self._is_fitting and self._fit_phase is not None:
            return self._fit_phase
        if self._range_phase is not None and not self._range_phase.is_over:
            return self._range_phase
        return self._diagnose_phase or self._confirm_phase or self._search_phase

    def next(self) -> Assignment | None:
        """The next run for a free slot, or None: nothing now, or nothing ever again when `is_finished`."""
        self._check_stop()
        while not self.is_finished and len(self._phase_of) < self._slots:
            phase = self._phase
            assignment = phase.next()
            if assignment is not None:
                self._phase_of[assignment.key] = phase
                return assignment
            if not phase.is_idle:
                return None
            self._turn_page()
        return None

    def _turn_page(self) -> None:
        """A phase has nothing left to run: go on to the next one, or finish."""
        if self._precision_phase is not None:
            self._after_precision()
            return
        if self._is_fitting:
            self._after_fit()
            return
        if self._range_phase is not None and not self._range_phase.is_over:
            self._range_phase.is_over = True
            return
        if self._diagnose_phase is not None:
            self.is_finished = True
            return
        if self._confirm_phase is not None:
            if not self._context.is_cancelled:
                self._context.observer.recipes_found(self._confirm_phase.recipes())
            self._finish()
            return
        job, closed = self._context.job, self._context.search.closed()
        candidates = self._finalists()
        baseline = next((trial for trial in closed if trial.is_baseline and trial.outcome != Outcome.LOST), None)
        is_stopped = self._context.is_cancelled or self._search_phase.has_failed
        is_due = job.confirm.runs > 0 and (bool(candidates) or job.confirm.always)
        is_wanted = is_due and self._context.ledger.can_afford_confirmation()
        if is_stopped or not is_wanted or baseline is None:
            self._finish()
            return
        self._confirm_phase = ConfirmPhase(self._context, baseline, candidates, self._earlier)
        self._confirm_phase.begin()

    def _finish(self) -> None:
        """Finish, but first look for the reason where nothing is recommended and our own loop has trained it."""
        context = self._context
        nothing = self._search_phase.has_failed or not self._is_enough(self._recipes())
        if context.is_cancelled or not nothing or not is_our_loop(context.job) or not context.search.closed():
            self.is_finished = True
            return
        self._diagnose_phase = DiagnosePhase(context)

    def _recipes(self) -> list[RecipeDraft]:
        return self._confirm_phase.recipes() if self._confirm_phase else list(self._search_phase.recipes)

    def _is_enough(self, recipes: Sequence[RecipeDraft]) -> bool:
        is_proven = any(recipe.status == "proven" for recipe in recipes)  # whatever is to be said of how
        return is_proven or (self._confirm_phase is None and bool(recipes))

    def _finalists(self) -> list[Closed]:
        """What is to be confirmed; the same as an earlier attempt has confirmed."""
        search = self._context.search
        closed = {trial.number: trial for trial in search.closed()}
        chosen = search.finalists
        if chosen is None:
            found = [trial for trial, _ in self._search_phase.finalists(self._context.job.confirm.top)]
            chosen = [{"number": t.number, "value": t.value, "full_runs": t.full_runs} for t in found]
            search.remember_finalists(chosen)
        return [replace(closed[one["number"]], value=one["value"], full_runs=one["full_runs"]) for one in chosen]

    def on_report(self, key: str, report: SlotReport) -> Decision:
        """Take in a slot's report and decide whether its run goes on. A run that has ended is not known any more."""
        if key not in self._phase_of:
            return Decision.STOP
        self._check_stop()
        self._context.last_reports[key] = report
        self._memory_growth = report.health.get("memory_growth", self._memory_growth)
        if report.end is not None and report.end.outcome == Outcome.LOST:
            self.on_lost(key, report.end.reason or "lost")
            return Decision.CONTINUE
        if report.end is not None:
            self._lost_in_row = 0
            return self._release(key).on_report(key, report)
        decision = self._phase_of[key].on_report(key, report)
        if decision == Decision.STOP:
            self._release(key)
        return decision

    def on_lost(self, key: str, reason: str) -> None:
        """The slot of a run died; the run is lost, the configuration is tried once more. Raises SlotsDyingError."""
        if key not in self._phase_of:
            return
        self._lost_in_row += 1
        self._phase_of[key].on_lost(key, reason)
        self._release(key)
        if self._lost_in_row > MAX_LOST_IN_ROW:
            raise SlotsDyingError(f"{self._lost_in_row} runs in a row were lost; the last: {reason}")

    def tend(self) -> None:
        """To be called all the time: while a busy cluster keeps our slots waiting, nobody reports.

        Asks the observer, and ends the runs of a cancelled job that are still waiting for their slots.
        """
        self._check_stop()
        if not self._context.is_cancelled or self.is_finished:
            return
        end = ProbeEnd(Outcome.CANCELLED, "the job was cancelled", Value.of(None))
        nothing = SlotReport((), 0.0, ProbeRecord(0.0, 0.0, None, None, self._context.device.name), "", end=end)
        for key in self._phase_of.keys() - self._context.last_reports.keys():
            self.on_report(key, nothing)
        self.next()

    def _release(self, key: str) -> PhaseRuns:
        last = self._context.last_reports.pop(key, None)
        if last is not None:
            self._settle_energy(last.probe)
        return self._phase_of.pop(key)

    def _settle_energy(self, probe: ProbeRecord) -> None:
        """Raises EnergyUnknownError where a cap cannot be kept."""
        cap, told = self._context.job.budget.energy_kwh, probe.telemetry
        if cap is not None and told and probe.energy_j is None:
            raise EnergyUnknownError(
                f"budget.energy_kwh = {cap:g} cannot be kept: the energy of {probe.device} is not known "
                f"({told['energy_reason']}). Leave it out, and cap budget.device_hours or budget.seconds instead."
            )
        self._context.ledger.add_energy(probe.energy_j)

    def _check_stop(self) -> None:
        """Ask the observer about once a second whether the job was cancelled; its exceptions pass through."""
        now = self._clock()
        if now - self._asked_at >= STOP_CHECK_S:
            self._asked_at = now
            if self._context.observer.stop_requested() is not None:
                self._context.is_cancelled = True

    @property
    def is_cancelled_and_done(self) -> bool:
        """Whether the job was cancelled and none of its runs is left in a slot."""
        return self._context.is_cancelled and self.is_finished

    def result(self) -> StudyResult:
        """What the study came to; call when `is_finished`."""
        context, searched = self._context, self._search_phase
        recipes = self._recipes()
        spent = context.ledger.device_seconds
        if context.is_cancelled:
            return StudyResult(StopReason.CANCELLED, None, recipes, [], spent)
        if self._fit_phase is not None and self._fit_phase.is_infeasible:
            findings = [self._fit_phase.finding()]
            return StudyResult(StopReason.SPACE_EXHAUSTED, "no_recommendation", [], findings, spent)
        reason = searched.stop_reason or StopReason.TRIALS
        looked = self._diagnose_phase.findings if self._diagnose_phase else []
        if searched.has_failed:
            finding = failures(context.search.closed(), searched.failure)
            return StudyResult(reason, None, recipes, [finding, *looked], spent, failed=True, error=searched.failure)
        objective = context.job.objective
        findings = diagnose(
            context.search.closed(), recipes, objective.direction, objective.metric, self._confirm_phase is not None
        )
        verdict: Literal["recommended", "no_recommendation"]
        verdict = "recommended" if self._is_enough(recipes) else "no_recommendation"
        if verdict == "no_recommendation":
            rates = self._range_phase.finding if self._range_phase else None
            looked = [*self._edge(), *looked, *([] if rates is None else [rates])]
        leaks = [] if self._memory_growth is None else [memory_growth(self._memory_growth)]
        remarks = list(self._fit_phase.remarks) if self._fit_phase else []
        return StudyResult(reason, verdict, recipes, [*findings, *looked, *leaks, *remarks], spent)

    def _edge(self) -> list[Finding]:
        """Whether the best trial is on the edge of the space."""
        job, best = self._context.job, ranked(self._context.search.closed(), self._context.job.objective.direction)
        finding = edge_of_space(job.space, best[0].parameters) if best else None
        return [finding] if finding else []
