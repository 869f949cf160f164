"""Who decides what a search tries next and what goes on: the part that differs between our search and Optuna's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tuner.assignment import SlotReport
from tuner.jobspec import ResolvedJob
from tuner.recommendation import baseline_of, finalists
from tuner.records import Outcome, Point
from tuner.search import Candidate, Search

Verdict = Literal["continue", "pause", "stop"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A trial to recommend: the value that it was seen with, and where: after `full_runs` of a full run.

    `baseline_value` is what the baseline had there; None where it did not train.
    """

    number: int
    value: float
    baseline_value: float | None
    full_runs: float


class Policy(Protocol):
    """The decisions of one search. What has come of them it hears by `ended`."""

    pauses: bool

    @property
    def is_converged(self) -> bool:
        """Whether more configurations are not worth their compute."""

    def take_up(self, open_marks: Mapping[int, int]) -> None:
        """Go on with the study's trials; of those that are open, where each is paused (its report index)."""

    def next(self, may_start: bool) -> Candidate | int | None:
        """What a free slot does: a new configuration, the number of a paused trial to go on with, or nothing now."""

    def judge(self, candidate: Candidate, report: SlotReport, may_start: bool) -> Verdict:
        """Whether a trial goes on after new points; `pause` only where its last report said that it can."""

    def reason(self, candidate: Candidate, point: Point) -> str:
        """Why a trial was stopped there, in words."""

    def ended(self, number: int, outcome: Outcome, value: float | None) -> None:
        """A trial is over, with this value if it came to its own end."""

    def is_paused(self, number: int) -> None:
        """The trial has left its state, now or before its last probe was lost, and may be gone on with from there."""

    def cannot_pause(self) -> None:
        """Checkpoints are not to be had: stop from now on what would be paused."""

    def best_first(self, numbers: Sequence[int]) -> list[int]:
        """Paused trials in the order of how much is expected of them."""

    def finalists(self, top: int) -> list[Standing]:
        """Up to `top` trials that are better than the baseline, the best first."""


class StockPolicy:
    """Optuna's sampler proposes, Optuna's pruner stops."""

    pauses = False
    is_converged = False

    def __init__(self, job: Callable[[], ResolvedJob], search: Search, tidy_up: Callable[[], None]) -> None:
        self._job = job
        self._search = search
        self._tidy_up = tidy_up

    def take_up(self, open_marks: Mapping[int, int]) -> None: ...

    def next(self, may_start: bool) -> Candidate | int | None:
        return self._search.ask(self._tidy_up) if may_start else None

    def judge(self, candidate: Candidate, report: SlotReport, may_start: bool) -> Verdict:  # noqa: ARG002
        """Never stops the baseline; nor is Optuna asked at the last point (Hyperband marks complete trials pruned)."""
        is_furthest = bool(report.points) and report.points[-1].position >= report.position
        is_hopeless = is_furthest and not candidate.is_baseline and self._search.should_prune(candidate.number)
        return "stop" if is_hopeless else "continue"

    def reason(self, candidate: Candidate, point: Point) -> str:  # noqa: ARG002
        return f"{seen_at(self._job(), point)} is behind the other trials (pruner {self._job().pruner})"

    def ended(self, number: int, outcome: Outcome, value: float | None) -> None: ...

    def is_paused(self, number: int) -> None: ...

    def cannot_pause(self) -> None: ...

    def best_first(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def finalists(self, top: int) -> list[Standing]:
        closed = self._search.closed()
        baseline = baseline_of(closed)
        return [
            Standing(trial.number, trial.value, baseline.value if baseline else None, 1.0)
            for trial in finalists(closed, self._job().objective.direction, top)
            if trial.value is not None
        ]


def seen_at(job: ResolvedJob, point: Point) -> str:
    """`val_loss = 0.31 at report 5 of 20`."""
    value: Any = point.value.number
    shown = point.value.kind if value is None else f"{value:.6g}"
    return f"{job.objective.metric} = {shown} at report {point.index} of {job.fidelity.reports}"
