"""Some steps of the job's own training in each precision: how long they take, and whether the loss is the same."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from typing import Any

from workloads.checkpoint import seed_everything
from workloads.contract import Diverged, Fidelity, Probe, ProbeConfig
from workloads.precisions import ROUNDS, STEPS, WARM_UP, Tried
from workloads.range_test import StepLosses, TimeIsUpError, TrainedOnly
from workloads.team import Team
from workloads.trainable import Trainable
from workloads.training import train

NEVER = 1e9
"""The time of a step where none was made."""


def measure_precisions(workload: Trainable, config: ProbeConfig, probe: Probe) -> dict[str, Any]:
    """What `config.fit["precisions"]`, `{among, seconds}`, asks for: what each precision came to, `tried`.

    `skipped` says why there is nothing, where it takes longer than `seconds`.
    """
    assert config.fit is not None
    asked, team = config.fit["precisions"], Team.current()
    ends_at = math.inf if asked["seconds"] is None else time.monotonic() + float(asked["seconds"])
    seed_everything(config.seed)
    trained = TrainedOnly(workload)
    found: dict[str, list[_Steps]] = {precision: [] for precision in asked["among"]}
    for turn in range(ROUNDS):
        for precision, runs in found.items():
            steps = _Steps(lambda: team.from_lead(lambda: time.monotonic() > ends_at))
            try:
                steps.run(trained, replace(config, precision=precision))  # type: ignore[arg-type]  # from JSON
            except TimeIsUpError:
                return {"skipped": f"it takes longer than {asked['seconds']:.3g} s", "tried": []}
            runs.append(steps)
            probe.report(step=turn + 1, lr=0.0)
    return {"tried": [asdict(_summed(precision, runs)) for precision, runs in found.items()]}


class _Steps(StepLosses):
    """Also keeps when each step was over."""

    def __init__(self, is_late: Callable[[], bool]) -> None:
        super().__init__(STEPS, is_late)
        self.times: list[float] = []
        self.reason: str | None = None

    def report(self, *, step: int, **metrics: float) -> None:
        self.times.append(time.perf_counter())
        super().report(step=step, **metrics)

    def run(self, workload: Trainable, config: ProbeConfig) -> None:
        fidelity = Fidelity("steps", STEPS, STEPS)
        try:
            train(workload, replace(config, fidelity=fidelity, split="validation"), self)
        except Diverged as error:
            self.reason = str(error)

    @property
    def step_s(self) -> list[float]:
        """The seconds of each step but for the first ones."""
        times = self.times[WARM_UP - 1 :]
        return [after - before for before, after in pairwise(times)]


def _summed(precision: str, runs: list[_Steps]) -> Tried:
    took = [seconds for run in runs for seconds in run.step_s]
    reason = next((run.reason for run in runs if run.reason), None)
    loss = None if reason else runs[0].losses[-1]
    return Tried(precision, median(took) if took else NEVER, loss, reason)
