"""A trial between its start and its end, over all of its probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tuner.assignment import SlotReport
from tuner.records import Outcome, Point, ProbeEnded, ProbeRecord, Value
from tuner.reports import Mark
from tuner.search import Candidate


@dataclass
class OpenTrial:
    """What is known of it so far. `device_seconds` are those of the probes that have ended.

    `mark` is where the probe numbered `left_by` was when it left its state; None while there is no such state.
    """

    candidate: Candidate
    derived: Mapping[str, Any]
    probes: int = 0
    device_seconds: float = 0.0
    mark: Mark | None = None
    left_by: int = 0
    has_started_over: bool = False
    log_tail: str = ""
    warnings: Mapping[str, int] = field(default_factory=dict)
    health: Mapping[str, Any] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.candidate.number

    @property
    def key(self) -> str:
        """The name of its latest probe's run: `t5`, then `t5.2`."""
        return f"t{self.number}" if self.probes == 1 else f"t{self.number}.{self.probes}"

    @property
    def position(self) -> float:
        """Where it is paused on the fidelity axis."""
        return self.mark.position if self.mark else 0.0

    @property
    def point(self) -> Point | None:
        """The last point before it was paused."""
        return self.mark.point if self.mark else None

    @property
    def value(self) -> Value:
        """The value that it is paused at."""
        return self.point.value if self.point else Value.of(None)

    def probe_over(self, report: SlotReport) -> None:
        """Its probe has ended, with this report."""
        self.device_seconds += report.probe.device_seconds
        self.log_tail, self.warnings, self.health = report.log_tail, report.warnings, report.health

    def ended(
        self, outcome: Outcome, reason: str | None, probe: ProbeRecord | None, point: Point | None = None
    ) -> ProbeEnded:
        """What to tell of a probe of it that has ended, while the trial waits at `point` or begins again."""
        return ProbeEnded(outcome, reason, self.derived, probe, point, self.log_tail, self.warnings, self.health)

    def start_over(self) -> None:
        """What it has saved is of no use: its next probe begins at the beginning."""
        self.mark, self.left_by = None, 0
