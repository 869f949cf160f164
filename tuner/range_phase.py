"""The learning rate range test, at the start of the search: short runs at rates over the whole searched range.

No rate is left out of the search for what it finds: it says which one is tried after the baseline, unless earlier jobs
do. Whatever keeps it from running is said and harms nobody.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.conditions import active
from tuner.fit_subject import is_our_loop
from tuner.foreseen import allowance, full_runs, full_steps, share_s
from tuner.jobspec import Range, ResolvedJob
from tuner.phases import Context, Decision, within
from tuner.records import Finding, Outcome
from tuner.seeds import trial_seed
from tuner.spec_space import nearest_inside
from workloads.rates import Rate, judge, plan, too_little

SHARE = 0.05
"""Of the budget: less than this is taken, whatever the budget is given in."""
LOWEST = 1e-4
"""Of the highest rate, where the lowest is none that a logarithm has."""
KEY = "rates"
ALIKE = 1.5
"""Rates that differ by less than this factor need not both be tried at first."""


class RangePhase:
    """One run, whose result outlives an attempt: one that died on the way is made again."""

    def __init__(self, context: Context, told: Mapping[str, Any] | None = None) -> None:
        """`told` is what an earlier attempt told its observer; it may have died before the study knew of it."""
        self._context = context
        self._is_running = self.is_over = False
        self.found: Mapping[str, Any] | None = context.search.rates
        if self.found is None and told is not None:
            self.found = told
            context.search.remember_rates(told)
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
            **allowance(job, SHARE),
        }
        probe = context.probe(-1, job.baseline, trial_seed(job.seed), "validation")
        return {**probe, "fit": {"rates": asked}}

    def on_report(self, key: str, report: SlotReport) -> Decision:  # noqa: ARG002 - there is one run
        context, is_running = self._context, report.end is None
        report = within(report, share_s(context.job, SHARE))
        if report.end is None and not context.is_cancelled:
            return Decision.CONTINUE
        self._is_running = False
        context.ledger.add_seconds(report.probe.device_seconds)
        if report.end is not None and report.end.outcome != Outcome.CANCELLED:
            self._settle(_measured(report, report.end), report)
        return Decision.STOP if is_running else Decision.CONTINUE

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is known, so it is made again
        self._is_running = False
        self._context.charge_lost(key)

    def _settle(self, found: Mapping[str, Any], report: SlotReport | None) -> None:
        context = self._context
        device_seconds = report.probe.device_seconds if report else 0.0
        state = "skipped" if found.get("reason") else "done"
        self.found = {**NOTHING, **found, "state": state, "device_seconds": device_seconds}
        has_history = context.learnt is not None and context.learnt.history is not None
        suggested = None if has_history else suggestion(context.job, self.found)
        if suggested is not None:
            self.found |= {"tries": suggested["lr"]}
            context.search.suggest(suggested, KEY)
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
    "rates": [], "tries": None,
}  # fmt: skip


def _measured(report: SlotReport, end: ProbeEnd) -> dict[str, Any]:
    """What a run that is over has found."""
    found = (report.fit or {}).get("rates")
    if found is None:
        return {"reason": f"its run ended {end.outcome}: {end.reason or 'without a word'}"}
    return _judged(found)


def _judged(measured: Mapping[str, Any]) -> dict[str, Any]:
    if measured.get("skipped"):
        return {"reason": measured["skipped"], "rates": measured["rates"], "steps": measured.get("steps")}
    found = judge([Rate(**rate) for rate in measured["rates"]], measured["untrained"])
    return {**(asdict(found) if found else {}), **measured}


def suggestion(job: ResolvedJob, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The baseline with the rate in the middle of those that train; None where it has about that rate itself.

    In the middle, because a short run is best at a higher rate than a long one.
    """
    if found["low"] is None:
        return None
    middle, usual = math.sqrt(found["low"] * found["high"]), job.baseline.get("lr")
    if usual and abs(math.log(middle / usual)) < math.log(ALIKE):
        return None
    inside = {n: nearest_inside(job.space[n], value) for n, value in job.baseline.items() if n in job.space}
    return active(job.space, {**inside, "lr": middle})


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
