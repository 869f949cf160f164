"""The learning rate range test, at the start of the search: short runs at rates over the whole searched range.

What it finds is evidence: no rate is left out of the search for it. Whatever keeps it from running is said and harms
nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.assignment import Assignment, SlotReport
from tuner.fit_subject import is_our_loop
from tuner.jobspec import OWN_SEARCH, Range, ResolvedJob
from tuner.phases import Context, Decision
from tuner.records import Finding, Outcome
from tuner.seeds import trial_seed
from workloads.catalog import manifest
from workloads.contract import Fidelity
from workloads.horizon import Horizon
from workloads.rates import MIN_RATES, Rate, judge, plan, too_little

SHARE = 0.05
"""Of the budget: less than this is taken, whatever the budget is given in."""
OF_A_RUN = 0.4
"""What a trial takes of a full run at least on average where the search pauses or prunes; else it is all of it."""
LOWEST = 1e-4
"""Of the highest rate, where the lowest is none that a logarithm has."""
KEY = "rates"


class RangePhase:
    """One run, whose result outlives an attempt: one that died on the way is made again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._is_running = self.is_over = False
        self.found: Mapping[str, Any] | None = context.search.rates
        if self.found is not None:
            context.ledger.add_seconds(self.found["device_seconds"])

    @property
    def is_idle(self) -> bool:
        return not self._is_running

    def next(self) -> Assignment | None:
        if self._is_running or self.found is not None or self._context.is_cancelled:
            return None
        reason = self._reason_against()
        if reason is not None:
            self._settle({"reason": reason}, None)
            return None
        self._is_running = True
        return Assignment(KEY, self._probe(), judged=False, fit="rates")

    def _reason_against(self) -> str | None:
        context, job = self._context, self._context.job
        if context.search.closed():
            return "the search had begun without it"
        spent = context.ledger.is_spent()
        if spent is not None:
            return f"the budget is spent (budget.{spent})"
        return reason_against(job)

    def _probe(self) -> dict[str, Any]:
        context, job = self._context, self._context.job
        lr = job.space["lr"]
        assert isinstance(lr, Range)
        asked = {
            "low": lr.low if lr.low > 0 else lr.high * LOWEST,
            "high": lr.high,
            "runs": SHARE * full_runs(job),
            "seconds": seconds(job),
        }
        probe = context.probe(-1, job.baseline, trial_seed(job.seed), "validation")
        return {**probe, "fit": {"rates": asked}}

    def on_report(self, key: str, report: SlotReport) -> Decision:  # noqa: ARG002 - there is one run
        if report.end is None:
            if not self._context.is_cancelled:
                return Decision.CONTINUE
            self._is_running = False
            self._context.ledger.add_seconds(report.probe.device_seconds)
            return Decision.STOP
        self._is_running = False
        self._context.ledger.add_seconds(report.probe.device_seconds)
        measured = (report.fit or {}).get("rates")
        if measured is None:
            outcome = report.end.outcome
            measured = {"skipped": f"its run ended {outcome}: {report.end.reason or 'without a word'}", "rates": []}
            if outcome == Outcome.CANCELLED:
                return Decision.CONTINUE
        self._settle(_judged(measured), report)
        return Decision.CONTINUE

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is known, so it is made again
        self._is_running = False
        last = self._context.last_reports.get(key)
        if last is not None:
            self._context.ledger.add_seconds(last.probe.device_seconds)

    def _settle(self, found: Mapping[str, Any], report: SlotReport | None) -> None:
        context = self._context
        device_seconds = report.probe.device_seconds if report else 0.0
        state = "skipped" if found.get("reason") else "done"
        self.found = {**NOTHING, **found, "state": state, "device_seconds": device_seconds}
        context.observer.rates_tested(self.found, report.probe if report else None)
        context.search.remember_rates(self.found)
        context.search.remember_seconds(context.ledger.seconds)

    @property
    def finding(self) -> Finding | None:
        """What a job that recommends nothing is told of its rates; None where nothing is known."""
        found = self.found
        if found is None or found["state"] != "done":
            return None
        lr = self._context.job.searched["lr"]
        assert isinstance(lr, Range)
        tried = f"{len(found['rates'])} learning rates from {lr.low:.3g} to {lr.high:.3g}, {found['steps']} steps each"
        evidence = {name: found[name] for name in ("rates", "untrained", "steps", "low", "high", "best", "diverges_at")}
        if found["low"] is None:
            message = f"Of {tried}, none lowers the loss."
            action = "Look at data, loss and model before the rates: `x5tune diagnose` does."
            return Finding("no_rate_trains", message, evidence, action)
        above = "" if found["diverges_at"] is None else f", and diverges at {found['diverges_at']:.3g} and above"
        message = f"Of {tried}, training gets anywhere between {found['low']:.3g} and {found['high']:.3g}{above}."
        return Finding("rate_range", message, evidence, "Search lr there: a narrower range needs fewer trials.")


NOTHING: Mapping[str, Any] = {
    "reason": None, "low": None, "high": None, "best": None, "diverges_at": None, "steps": None, "untrained": None,
    "rates": [],
}  # fmt: skip


def _judged(measured: Mapping[str, Any]) -> dict[str, Any]:
    if measured.get("skipped"):
        return {"reason": measured["skipped"], "rates": measured["rates"], "steps": measured.get("steps")}
    found = judge([Rate(**rate) for rate in measured["rates"]], measured["untrained"])
    return {**(asdict(found) if found else {}), **measured}


def reason_against(job: ResolvedJob) -> str | None:
    """Why the rates of this job are not tested; None where they are."""
    if not job.range_test:
        return "range_test is false"
    if not is_our_loop(job):
        return f"{job.workload} trains by itself"
    lr = job.searched.get("lr")
    if not isinstance(lr, Range):
        return "lr is not searched over a range"
    steps = full_steps(job)
    share = SHARE * full_runs(job)
    if steps is not None and plan(int(share * steps)) is None:
        return too_little(share * steps)
    return None


def full_runs(job: ResolvedJob) -> float:
    """The full runs that the search will take at least; without a cap that says it, as many as rates are tested."""
    budget = job.budget
    each = OF_A_RUN if job.sampler == OWN_SEARCH or job.pruner != "none" else 1.0
    caps = [budget.full_runs, None if budget.trials is None else each * budget.trials]
    return min((cap for cap in caps if cap is not None), default=float(MIN_RATES))


def full_steps(job: ResolvedJob) -> int | None:
    """The steps of a full run of the baseline; None where only the run itself can tell."""
    fidelity, batch_size = job.fidelity, job.baseline.get("batch_size")
    tokens = manifest(job.workload).tokens_per_sample if job.code is None else None
    if fidelity.axis == "seconds" or batch_size is None or (fidelity.axis == "tokens" and tokens is None):
        return None
    return Horizon.of(Fidelity(fidelity.axis, fidelity.max, fidelity.reports), int(batch_size), tokens).steps


def seconds(job: ResolvedJob) -> float | None:
    """What the test may take of what is given in time or money; None where nothing is."""
    budget, device_share = job.budget, job.resources.gpus or 1.0
    caps = [budget.seconds]
    if job.fidelity.axis == "seconds":
        caps.append(full_runs(job) * job.fidelity.max)
    if budget.device_hours is not None:
        caps.append(budget.device_hours * 3600 / device_share)
    if budget.cost is not None:
        caps.append(budget.cost.amount / budget.cost.per_device_hour * 3600 / device_share)
    return min((SHARE * cap for cap in caps if cap is not None), default=None)
