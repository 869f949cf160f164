"""`precision: auto`, by what the device can do and by what short runs of the baseline show; before everything else.

What keeps them from running leaves the choice to what the device can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.assignment import Assignment, SlotReport
from tuner.device import Device
from tuner.fit_subject import is_our_loop
from tuner.foreseen import allowance, full_runs, full_steps, share_s
from tuner.jobspec import ResolvedJob
from tuner.phases import Context, Decision, within
from tuner.records import Outcome
from tuner.seeds import trial_seed
from workloads.precisions import ROUNDS, STEPS, Tried, choose

SHARE = 0.01
"""Of the budget, whatever that is given in: where it would take more, the device decides."""
KEY = "precisions"


def candidates(device: Device) -> Sequence[str]:
    """The precisions that are worth trying: fp16 is emulated on a CPU, and bf16 on a GPU that has none."""
    if device.type == "cpu":
        return ("fp32", "bf16")
    return ("fp32", "fp16", "bf16") if device.has_bf16 else ("fp32", "fp16")


def wants_measuring(job: ResolvedJob, device: Device) -> bool:
    """Whether `auto` is to be decided by a measurement: of what x5tune trains, where it costs next to nothing."""
    if job.precision != "auto" or not is_our_loop(job):
        return False
    steps, needed = full_steps(job), len(candidates(device)) * ROUNDS * STEPS
    return steps is not None and SHARE * full_runs(job) * steps >= needed


class PrecisionPhase:
    """One run; a job whose runner dies in the middle of it begins it again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_running = self._is_over = False

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def next(self) -> Assignment | None:
        context, job = self._context, self._context.job
        if self._is_running or self._is_over or context.is_cancelled:
            return None
        self._is_running = True
        asked = {"among": candidates(context.device), **allowance(job, SHARE)}
        probe = context.probe(-1, job.baseline, trial_seed(job.seed), "validation")
        return Assignment(KEY, {**probe, "fit": {"precisions": asked}}, judged=False, fit="precisions")

    def on_report(self, key: str, report: SlotReport) -> Decision:  # noqa: ARG002 - there is one run
        context, is_running = self._context, report.end is None
        report = within(report, share_s(context.job, SHARE))
        if report.end is None and not context.is_cancelled:
            return Decision.CONTINUE
        self._is_running = False
        context.ledger.add_seconds(report.probe.device_seconds)
        if report.end is not None and report.end.outcome != Outcome.CANCELLED:
            self._is_over = True
            measured = (report.fit or {}).get("precisions") or {}
            why = measured.get("skipped") or report.end.reason or str(report.end.outcome)
            found = decided(measured.get("tried") or [], context.device.precision("auto"), why)
            context.observer.precision_measured(found, report.probe)
            context.decide_precision(found["precision"])
            context.search.remember_seconds(context.ledger.seconds)
        return Decision.STOP if is_running else Decision.CONTINUE

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is known, so it is made again
        self._is_running = False
        self._context.charge_lost(key)


def decided(tried: Sequence[Mapping[str, Any]], usual: str, why_not: str) -> dict[str, Any]:
    """The precision, what it was chosen by, and both in words; `why_not` where nothing was measured."""
    precision = choose([Tried(**each) for each in tried], usual)
    if not tried:
        text = f"precision {precision}, as usual on this device; nothing was measured: {why_not}"
    else:
        text = f"precision {precision}: {', '.join(map(_words, tried))}"
    return {"precision": precision, "usual": usual, "tried": [dict(each) for each in tried], "text": text}


def _words(tried: Mapping[str, Any]) -> str:
    how = "diverges" if tried["loss"] is None else f"{tried['step_s'] * 1000:.3g} ms a step, loss {tried['loss']:.4g}"
    return f"{tried['precision']} {how}"
