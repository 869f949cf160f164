"""A run of phase `fit` in a slot: a prediction, or a proof whose memory is watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.assignment import SlotReport
from tuner.memory_sampler import MemorySampler
from tuner.probe_process import Exited, ProbeOrder, Report, isolation_prefix
from tuner.records import Outcome
from tuner.slot import SlotRun


class FitRun(SlotRun):
    """Lets every report go on; its last `SlotReport` says in `fit` what was measured and what it was about at its end.

    `fit` is `{stage, host_peak_bytes}` and what the probe itself has to say: `predictions`, or of a proof
    `samples_per_s` (none of it where it has died).
    """

    _sampler: MemorySampler | None = None
    _said: Mapping[str, Any] = {}
    _stage: str | None = None

    def step(self) -> SlotReport:
        report = super().step()
        if report.end is None:
            return report
        peak = self._sampler.stop() if self._sampler is not None else 0
        end = replace(report.end, outcome=Outcome.OK, reason=None) if self._said else report.end
        return replace(report, end=end, fit={"stage": self._stage, "host_peak_bytes": peak, **self._said})

    def _order(self, probe: Mapping[str, Any]) -> ProbeOrder:
        order = super()._order(probe)
        if self._assignment.fit == "predict":
            return replace(order, memory_bytes=None)  # fake tensors take none, what computes with them does
        self._sampler = MemorySampler(
            self._host.parent_pid, is_namespaced=bool(isolation_prefix()), is_command=order.argv is not None
        )
        return order

    def _take_in(self, _: Report, /) -> SlotReport | None:
        self._go_on()
        return None

    def _ended(self, exited: Exited) -> SlotReport:
        self._stage = exited.stage
        self._said = (exited.said or {}).get("fit") or {}
        return super()._ended(exited)
