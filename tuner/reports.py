"""From a probe's raw reports to points on its curve; pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tuner.errors import TunerError
from tuner.records import Point, Value
from workloads.contract import Fidelity

MAX_NAMES = 200  # of metrics kept for one probe; all of them travel with every report
FURTHEST = 2.0**53  # of steps, samples and the like; the database holds it as a whole number
MAX_CHARS = 200  # of a name, and of text beside the metric
MAX_UNPLACED = 8192  # of reports kept while nobody knows how long a full run is


class UnreadableReportError(TunerError):
    """A report that does not follow the protocol: only a broken probe sends one."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a paused probe was: its last point, and what the book of the next one has to know besides.

    `counts_from_zero`: its script counts epochs from 0; None where that is not known.
    """

    index: int
    position: float
    step: int
    value: float
    counts_from_zero: bool | None = None
    warnings: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def resume_at(self) -> dict[str, Any]:
        """What the next probe is told of it."""
        return {"step": self.step, "position": self.position, "index": self.index}

    @property
    def point(self) -> Point:
        return Point(self.index, self.position, self.step, Value.of(self.value))


class ReportBook:
    """Keeps one point for each report index that a probe reaches.

    Reports between two due positions are not kept, unless their value is not finite. A repeated step keeps the first
    value. A step behind the last one makes a point where its place on the curve is still free; `last` stays the
    furthest. Both are counted. While nobody knows how long a full run is, no report makes a point; `settle` does. The
    book of a probe that goes on from a pause goes on from its `mark`.
    """

    def __init__(self, fidelity: Fidelity, metric: str, batch_size: int | None, mark: Mark | None = None) -> None:
        self._fidelity = fidelity
        self._metric = metric
        self._batch_size = batch_size
        self._last_step: int | None = None
        self._counts_from_zero: bool | None = None
        self._names: set[str] = set()
        self._taken: set[int] = set()
        self._unplaced: list[Point] = []
        self._seen, self._stride = 0, 1  # of all reports, each how manieth is kept
        self.warnings: Counter[str] = Counter()
        self.health: dict[str, float | str] = {}
        self.last: Point | None = None
        self.is_past_the_end = False
        if mark is not None:
            self.last, self._last_step = mark.point, mark.step
            self._taken = set(range(mark.index + 1))
            self._counts_from_zero = mark.counts_from_zero
            self.warnings.update(mark.warnings)

    @property
    def mark(self) -> Mark | None:
        """Where the probe is; None before its first point."""
        last = self.last
        if last is None or last.value.number is None:
            return None
        return Mark(
            last.index, last.position, last.step, last.value.number, self._counts_from_zero, dict(self.warnings)
        )

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
        if "problem" in report:
            raise UnreadableReportError(report["problem"])
        metrics = report.get("metrics")
        if not isinstance(metrics, Mapping):
            said = f"metrics is {metrics!r:.80}" if "metrics" in report else "it has no metrics"
            raise UnreadableReportError(f"sent a report that cannot be read: {said}")
        try:
            return self._add(report, metrics)
        except ValueError as error:
            raise UnreadableReportError(f"sent a report that cannot be read: {error}") from error

    def settle(self) -> tuple[Point, ...]:
        """The points of a run that has ended and thereby shows how long a full run is: as long as this one was."""
        if self.last is None or self.last.position <= 0:
            return ()
        self._fidelity = replace(self._fidelity, max=self.last.position)
        points: list[Point] = []
        for point in sorted((*self._unplaced, self.last), key=lambda point: point.step):
            index = self._fidelity.index(point.position)
            if index > (points[-1].index if points else 0):
                points.append(replace(point, index=index))
        self._unplaced.clear()
        self.last = points[-1]
        return tuple(points)

    def _add(self, report: Mapping[str, Any], metrics: Mapping[str, Any]) -> Point | None:
        step = int(_number(report, "step"))
        for name, value in metrics.items():
            shown = name[:MAX_CHARS]
            if shown in self._names or len(self._names) < MAX_NAMES:
                self._names.add(shown)
                if name != self._metric and isinstance(value, int | float | str):
                    self.health[shown] = value[:MAX_CHARS] if isinstance(value, str) else value
        if self._metric not in metrics:
            return None  # of the step of a report that says something else, nothing follows
        if step == self._last_step:
            self.warnings["repeated_step"] += 1
            return None
        if isinstance(metrics[self._metric], str):
            raise ValueError(f"metric {self._metric!r} is text: {metrics[self._metric]!r:.80}")
        position, value = self._position(report, step), _number(metrics, self._metric, "metric ")
        point = Point(self._fidelity.index(position), position, step, Value.of(value))
        if self._last_step is not None and step < self._last_step:
            self.warnings["step_out_of_order"] += 1
            return self._place_behind(point)
        self._last_step = step
        return self._place(point)

    def _place(self, point: Point) -> Point | None:
        before = self.last.index if self.last else 0
        if not self._fidelity.is_known and point.value.is_finite:
            self._keep(point)
            self.last = point
            return None
        if point.index <= before:
            if point.value.is_finite:
                self.is_past_the_end = before >= self._fidelity.reports
                return None
            # It ends the trial, so it is on the curve, due or not.
            point = replace(point, index=min(before + 1, self._fidelity.reports))
        self._taken.add(point.index)
        self.last = point
        return point

    def _place_behind(self, point: Point) -> Point | None:
        if not self._fidelity.is_known and point.value.is_finite:
            self._keep(point)
            return None
        if point.value.is_finite and (point.index < 1 or point.index in self._taken):
            return None
        self._taken.add(point.index)
        return point

    def _keep(self, point: Point) -> None:
        if self._seen % self._stride == 0:
            self._unplaced.append(point)
        self._seen += 1
        if len(self._unplaced) >= MAX_UNPLACED:
            self._unplaced = self._unplaced[::2]
            self._stride *= 2

    def _position(self, report: Mapping[str, Any], step: int) -> float:
        axis = self._fidelity.axis
        if report.get("is_counted") and axis in ("steps", "samples") and axis not in report:
            said = ", ".join(name for name in ("samples", "tokens", "epoch") if name in report)
            raise ValueError(f"it says no {axis} but {said}; choose fidelity.axis by that")
        if axis == "steps":
            position = float(step)
        elif axis == "epochs":
            position = self._epochs(_number(report, "epoch"))
        elif axis in report or axis == "tokens":
            position = _number(report, axis)
        elif self._batch_size is None:
            raise ValueError("it says no samples, and without batch_size in search a step cannot be counted in them")
        else:
            position = float(step * self._batch_size)
        if not math.isfinite(position):
            raise ValueError(f"its position is {position}")
        return position

    def _epochs(self, epoch: float) -> float:
        """How many epochs are over: a script that counts them from 0 reports epoch 0 when one is."""
        if self._counts_from_zero is None:
            self._counts_from_zero = epoch == 0
        return epoch + 1 if self._counts_from_zero else epoch


def _number(values: Mapping[str, Any], name: str, what: str = "") -> float:
    """`values[name]` as a number, within FURTHEST where it is no metric's. Raises ValueError with name and value."""
    if name not in values:
        raise ValueError(f"it has no {name}")
    number: float | None = None
    with suppress(TypeError, ValueError, OverflowError):
        number = float(values[name])
    if number is None or not (what or abs(number) <= FURTHEST):
        raise ValueError(f"{what}{name!r} is {values[name]!r:.80}, which is no number that can be used")
    return number
