"""One run at the end of a study that recommends nothing: it looks for the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.assignment import Assignment, SlotReport
from tuner.jobspec import ResolvedJob
from tuner.phases import Context, Decision, within
from tuner.records import Finding
from tuner.seeds import trial_seed

SECONDS, LEAST_SECONDS = 30.0, 5.0
OVERRUN = 1.5
"""How many times its seconds a diagnosis may take before it is ended, with what it knows by then."""
KEY = "diagnosis"
NOT_DIAGNOSED = Finding(
    "not_diagnosed",
    "The budget is spent, so no run looked for the reason.",
    {},
    "Run `x5tune diagnose` with the job's id.",
)


def diagnosis_order(job: ResolvedJob, seconds: float, *, names_metric: bool = True) -> dict[str, Any]:
    """What a probe's `fit` says to be diagnosed (`workloads.diagnosis`)."""
    objective = job.objective
    metric = objective.metric if names_metric else None
    return {"diagnose": {"metric": metric, "direction": objective.direction, "seconds": seconds}}


def findings_of(verdicts: list[Mapping[str, Any]]) -> list[Finding]:
    """The verdicts that something is wrong, problems first."""
    wrong = [verdict for level in ("problem", "warning") for verdict in verdicts if verdict["level"] == level]
    return [Finding(v["code"], v["message"], v["evidence"], v["action"] or "") for v in wrong]


class DiagnosePhase:
    """Diagnoses the baseline, once, within what is left of the budget; what that takes is charged to the job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_begun = self._is_over = False
        self._seconds = min(SECONDS, context.ledger.left_s())
        self.findings: list[Finding] = []

    @property
    def is_idle(self) -> bool:
        return self._is_over or not self._is_begun

    def next(self) -> Assignment | None:
        if self._is_begun or self._context.is_cancelled:
            return None
        self._is_begun = True
        job = self._context.job
        if self._seconds < LEAST_SECONDS or self._context.ledger.is_spent():
            self._is_over = True
            self.findings = [NOT_DIAGNOSED]
            return None
        probe = self._context.probe(-1, job.baseline, trial_seed(job.seed), "validation")
        return Assignment(KEY, {**probe, "fit": diagnosis_order(job, self._seconds)}, judged=False, fit="diagnose")

    def on_report(self, key: str, report: SlotReport) -> Decision:  # noqa: ARG002 - there is one run
        is_running = report.end is None
        if within(report, OVERRUN * self._seconds).end is None and not self._context.is_cancelled:
            return Decision.CONTINUE
        self._is_over = True
        self._context.ledger.add_seconds(report.probe.device_seconds)
        known = (report.fit or {}).get("verdicts") or report.health.get("verdicts") or []
        self.findings = findings_of(known)
        self._context.observer.diagnosed(self.findings, report.probe)
        return Decision.STOP if is_running else Decision.CONTINUE

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is lost with it
        self._is_over = True
