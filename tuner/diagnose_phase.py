"""One run at the end of a study that recommends nothing: it looks for the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.assignment import Assignment, SlotReport
from tuner.jobspec import ResolvedJob
from tuner.phases import Context, Decision
from tuner.records import Finding
from tuner.seeds import trial_seed

SECONDS = 30.0
KEY = "diagnosis"


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
    """Diagnoses the baseline, once; what that takes is charged to the job."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_begun = self._is_over = False
        self.findings: list[Finding] = []

    @property
    def is_idle(self) -> bool:
        return self._is_over or not self._is_begun

    def next(self) -> Assignment | None:
        if self._is_begun or self._context.is_cancelled:
            return None
        self._is_begun = True
        job = self._context.job
        probe = self._context.probe(-1, job.baseline, trial_seed(job.seed), "validation")
        return Assignment(KEY, {**probe, "fit": diagnosis_order(job, SECONDS)}, judged=False, fit="diagnose")

    def on_report(self, key: str, report: SlotReport) -> Decision:  # noqa: ARG002 - there is one run
        if report.end is None:
            return Decision.STOP if self._context.is_cancelled else Decision.CONTINUE
        self._is_over = True
        self._context.ledger.add_seconds(report.probe.device_seconds)
        self.findings = findings_of((report.fit or {}).get("verdicts") or [])
        return Decision.CONTINUE

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is lost with it
        self._is_over = True
