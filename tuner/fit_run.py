"""A run of phase `fit` in a slot: a prediction, or a proof whose memory is watched."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.assignment import ProbeEnd, SlotReport
from tuner.memory_sampler import MemorySampler
from tuner.probe_process import Exited, ProbeOrder, Report
from tuner.records import Outcome
from tuner.slot import SlotRun

REPORTS = 2  # of the user's own code, until its proof is over: by then it has evaluated twice


class FitRun(SlotRun):
    """Lets every report go on; its last `SlotReport` says in `fit` what was measured and what it was about at its end.

    `fit` is `{stage, host_peak_bytes}` and what the probe itself has to say: `predictions`, `verdicts`, `rates`, or
    of a proof `samples_per_s` (none of it where it has died), or `is_over` where it was ended at its cap.
    """

    _memory: MemorySampler | None = None
    _said: Mapping[str, Any] = {}
    _stage: str | None = None
    _reports = 0
    _was_ended = False

    def step(self) -> SlotReport:
        report = super().step()
        if report.end is None:
            return report
        peak = self._memory.stop() if self._memory is not None else 0
        if self._was_ended:
            return self._over(report, report.end, peak)
        if self._is_outside:
            return replace(report, fit=self._seen_from_outside(report.end.outcome, peak))
        end = replace(report.end, outcome=Outcome.OK, reason=None) if self._said else report.end
        return replace(report, end=end, fit={"stage": self._stage, "host_peak_bytes": peak, **self._said})

    def _over(self, report: SlotReport, end: ProbeEnd, peak: int) -> SlotReport:
        """It was ended in time, which is what it was to find out; of its rest nothing is known."""
        stage = self._reached if self._is_outside else self._stage
        fit = {"stage": stage, "host_peak_bytes": peak, "is_over": True}
        return replace(report, end=replace(end, outcome=Outcome.OK, reason=None), fit=fit)

    @property
    def _reached(self) -> str:
        return f"after report {self._reports}" if self._reports else "before the first report"

    def _seen_from_outside(self, outcome: Outcome, peak: int) -> dict[str, Any]:
        has_passed = bool(self._reports) and outcome != Outcome.OUT_OF_MEMORY
        return {"stage": self._reached, "host_peak_bytes": peak, **({"reports": self._reports} if has_passed else {})}

    def _order(self, probe: Mapping[str, Any]) -> ProbeOrder:
        order = super()._order(probe)
        if self._assignment.fit == "predict":
            return replace(order, memory_bytes=None)  # fake tensors take none, what computes with them does
        self._memory = MemorySampler(
            self._host.warm_pid, is_command=order.argv is not None, cap_bytes=self._assignment.cap_bytes
        )
        return order

    def _take_in(self, _: Report, /) -> SlotReport | None:
        self._reports += 1
        if self._is_outside and self._reports >= REPORTS:
            return self._report((), self._host.end("the proof is over"), Outcome.OK)
        self._go_on()
        return None

    @property
    def _is_outside(self) -> bool:
        """Whether the user's own code trains, of which nothing is known but its reports."""
        return "fit" not in self._assignment.probe

    def _ended(self, exited: Exited) -> SlotReport:
        self._stage = exited.stage
        self._said = (exited.said or {}).get("fit") or {}
        is_killed = exited.status == -int(signal.SIGKILL)
        self._was_ended = is_killed and self._memory is not None and self._memory.is_over
        return super()._ended(exited)
