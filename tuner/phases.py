"""What the phases of a study share: the context that they act in, and the runs that are in slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.derivation import derive
from tuner.device import Device
from tuner.earlier_jobs import Learnt, learn
from tuner.jobspec import ResolvedJob
from tuner.ledger import Ledger
from tuner.records import Frontier, Observer, Outcome, Value
from tuner.search import Search


class Decision(StrEnum):
    """What a slot's run does after a report."""

    CONTINUE = "continue"
    PAUSE = "pause"
    """It saves its state and ends; its last report says whether that has worked."""
    STOP = "stop"


@dataclass
class Context:
    """Everything that both phases need. `is_cancelled` turns True once and stays.

    `give_way` takes the micro-batch that a run was out of memory with and puts the frontier below it; False where
    there is nothing below.
    """

    job: ResolvedJob
    job_id: str
    search: Search
    observer: Observer
    device: Device
    ledger: Ledger
    is_cancelled: bool = False
    frontier: Frontier | None = None
    give_way: Callable[[int], bool] = lambda _: False
    last_reports: dict[str, SlotReport] = field(default_factory=dict)
    learnt: Learnt | None = None

    def learn_horizon(self, position: float) -> None:
        """A full run is as long as the first one was; told before that run's end, so that no death can part them."""
        self.job = replace(self.job, fidelity=replace(self.job.fidelity, max=position))
        self.search.job = self.job
        self.ledger.horizon = position
        self.observer.job_decided(self.job)

    def charge_lost(self, key: str) -> float:
        """The device seconds of a run whose slot died, as far as it had told of them; the job is charged with them."""
        last = self.last_reports.get(key)
        device_seconds = last.probe.device_seconds if last is not None else 0.0
        self.ledger.add_seconds(device_seconds)
        return device_seconds

    def decide_precision(self, precision: str) -> None:
        """What `precision: auto` is in this job."""
        self.job = replace(self.job, precision=precision)  # type: ignore[arg-type]  # one of them
        self.search.job = self.job
        self.observer.job_decided(self.job)

    def leave_out(self, job: ResolvedJob) -> bool:
        """Search `job`, which is this one without what cannot be made, before the first trial; False: nothing is."""
        if job == self.job:
            return False
        self.job = job
        self.search.narrow(job)
        self.learnt = None if self.learnt is None else learn(job, self.learnt.earlier)  # in the places of that space
        self.observer.job_decided(job)
        return True

    def derive(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What follows from a configuration with the micro-batch that fits."""
        frontier = self.frontier
        pieces = frontier.micro_batch if frontier and frontier.can_cut else None
        is_on = frontier.checkpointing if frontier else self.job.limits.checkpointing == "always"
        return derive(parameters, self.job.resources.processes, pieces, checkpointing=is_on)

    def probe(
        self,
        trial: int,
        parameters: Mapping[str, Any],
        seed: int,
        split: str,
        derived: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """The content of a probe's X5TUNE_CONFIG; `derived` where a trial goes on with what it began with."""
        return {
            "parameters": dict(parameters),
            "derived": dict(self.derive(parameters) if derived is None else derived),
            "seed": seed,
            "fidelity": self.job.fidelity.to_json(),
            "device": self.device.type,
            "precision": self.device.precision(self.job.precision),
            "trial": trial,
            "job_id": self.job_id,
            "split": split,
            **({"activations": True} if self.job.activations else {}),
        }


class PhaseRuns(Protocol):
    """One phase: gives out runs and judges what comes back from them."""

    @property
    def is_idle(self) -> bool:
        """Whether none of its runs is in a slot."""

    def next(self) -> Assignment | None:
        """The next run for a free slot; None when there is none now. With `is_idle`: none ever again."""

    def on_report(self, key: str, report: SlotReport) -> Decision:
        """Take in a slot's report; ends the run itself when it decides STOP."""

    def on_lost(self, key: str, reason: str) -> None:
        """The slot of a run died under it."""


def within(report: SlotReport, seconds: float | None) -> SlotReport:
    """What a run that may take so many seconds (None: any) has reported; ended now where it is over them."""
    if report.end is not None or seconds is None or report.probe.seconds < seconds:
        return report
    return replace(report, end=ProbeEnd(Outcome.TIMED_OUT, f"it was not over after {seconds:.3g} s", Value.of(None)))


def last_value(report: SlotReport) -> Value:
    """The value of a report's last point."""
    return report.points[-1].value if report.points else Value.of(None)
