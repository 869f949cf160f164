"""From a probe's raw reports to points on its curve; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tuner.errors import TunerError
from tuner.records import Point, Value
from workloads.contract import Fidelity

MAX_NAMES = 200  # of metrics kept for one probe; all of them travel with every report


class UnreadableReportError(TunerError):
    """A report that does not follow the protocol: only a broken probe sends one."""


class ReportBook:
    """Keeps one point for each report index that a probe reaches, in the order of arrival.

    Reports between two due positions are not kept, unless their value is not finite. A repeated step keeps the first
    value; a step behind the last one makes no point; both are counted.
    """

    def __init__(self, fidelity: Fidelity, metric: str, batch_size: int) -> None:
        self._fidelity = fidelity
        self._metric = metric
        self._batch_size = batch_size
        self._last_step = 0
        self._names: set[str] = set()
        self.warnings: Counter[str] = Counter()
        self.health: dict[str, float] = {}
        self.last: Point | None = None

    @property
    def metric_names(self) -> list[str]:
        """Every metric name seen so far, for the reason of a `no_metric`."""
        return sorted(self._names)

    @property
    def position(self) -> float:
        """How far the probe is on the fidelity axis, 0 before its first report."""
        return self.last.position if self.last else 0.0

    def add(self, report: Mapping[str, Any]) -> Point | None:
        """The new point that `report` makes, if any. Raises UnreadableReportError."""
        try:
            return self._add(report, int(report["step"]), dict(report["metrics"]))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            what = f"{type(error).__name__}: {error}"[:200]
            raise UnreadableReportError(f"sent a report that cannot be read ({what})") from error

    def _add(self, report: Mapping[str, Any], step: int, metrics: Mapping[str, Any]) -> Point | None:
        for name, value in metrics.items():
            if name in self._names or len(self._names) < MAX_NAMES:
                self._names.add(name)
                self.health |= {name: value} if name != self._metric else {}
        if step <= self._last_step:
            self.warnings["repeated_step" if step == self._last_step else "step_out_of_order"] += 1
            return None
        self._last_step = step
        if self._metric not in metrics:
            return None
        position = self._position(report, step)
        index = self._fidelity.index(position)
        if isinstance(metrics[self._metric], str):
            raise TypeError(f"metric {self._metric!r} is text: {metrics[self._metric]!r:.80}")
        value, before = Value.of(float(metrics[self._metric])), self.last.index if self.last else 0
        if index <= before:
            if value.is_finite:
                return None
            index = min(before + 1, self._fidelity.reports)  # it ends the trial, so it is on the curve, due or not
        self.last = Point(index, position, step, value)
        return self.last

    def _position(self, report: Mapping[str, Any], step: int) -> float:
        if self._fidelity.axis == "steps":
            position = float(step)
        elif self._fidelity.axis in report or self._fidelity.axis == "tokens":
            position = float(report[self._fidelity.axis])
        else:
            position = float(report.get("samples", step * self._batch_size))
        if not math.isfinite(position):
            raise ValueError(f"its position is {position}")
        return position
