"""Which confirmation runs are due; pure. Two looks: after the asked-for seeds, and after `EXTENDED_SEEDS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tuner.confirmation import Judgement, judge, needs_more
from tuner.records import Confirmation, Outcome
from tuner.search import Closed
from tuner.seeds import fresh_seeds
from workloads.manifest import Direction

EXTENDED_SEEDS = 8


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One configuration at the full horizon on one fresh seed."""

    candidate: Closed
    seed: int


@dataclass
class ConfirmPlan:
    """`baseline` and `candidates` on the same seeds. `runs` holds what is done, of an earlier attempt too."""

    baseline: Closed
    candidates: Sequence[Closed]
    direction: Direction
    seeds: int
    job_seed: int
    runs: list[Confirmation] = field(default_factory=list)
    look: int = 1

    @property
    def current_seeds(self) -> list[int]:
        count = self.seeds if self.look == 1 else max(self.seeds, EXTENDED_SEEDS)
        return fresh_seeds(self.job_seed, count)

    @property
    def total(self) -> int:
        return len(self.current_seeds) * (len(self.candidates) + 1)

    def missing(self) -> Iterator[PlannedRun]:
        """Runs still to be made at this look, seed by seed so that pairs complete early."""
        return self._missing(self.current_seeds)

    def _missing(self, seeds: Sequence[int]) -> Iterator[PlannedRun]:
        done = {(run.trial, run.seed) for run in self.runs if run.outcome != Outcome.LOST}
        for seed in seeds:
            for candidate in (self.baseline, *self.candidates):
                if (candidate.number, seed) not in done:
                    yield PlannedRun(candidate, seed)

    def judge(self) -> Mapping[int, Judgement]:
        """The statistics of what is done, over the seeds that every configuration has been run on.

        A run that was lost or cut short says nothing; every other one without a value has failed.
        """
        values: dict[int, dict[int, float | None]] = {}
        for run in self.runs:
            if run.outcome in (Outcome.LOST, Outcome.CANCELLED):
                continue
            number = run.value.number if run.outcome == Outcome.OK else None
            values.setdefault(run.trial, {})[run.seed] = number
        everyone = [self.baseline.number, *(c.number for c in self.candidates)]
        common = [s for s in self.current_seeds if all(s in values.get(number, {}) for number in everyone)]
        paired = {number: {seed: values.get(number, {})[seed] for seed in common} for number in everyone}
        base = paired.pop(self.baseline.number)
        looks = 1 if self.seeds >= EXTENDED_SEEDS else 2
        return judge(base, paired, self.direction, look=self.look, looks=looks)

    @property
    def extension(self) -> int:
        """How many runs the second look adds; 0 when there is none to come."""
        return sum(1 for _ in self._missing(fresh_seeds(self.job_seed, EXTENDED_SEEDS))) if self._may_extend else 0

    @property
    def _may_extend(self) -> bool:
        return self.look == 1 and self.seeds < EXTENDED_SEEDS

    def was_lost(self, planned: PlannedRun) -> bool:
        """Whether this run has been lost before."""
        return any(
            run.outcome == Outcome.LOST and (run.trial, run.seed) == (planned.candidate.number, planned.seed)
            for run in self.runs
        )

    def extend(self) -> bool:
        """Go on to the second look if the first left something undecided; False if there is nothing more to run."""
        if not self._may_extend or not needs_more(self.judge()):
            return False
        self.look = 2
        return True
