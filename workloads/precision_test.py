"""Some steps of the job's own training in each precision: how long they take, and whether the loss is the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from typing import Any

from workloads.checkpoint import seed_everything
from workloads.contract import Probe, ProbeConfig
from workloads.precisions import ROUNDS, STEPS, WARM_UP, Tried
from workloads.step_run import StepRun, StepRuns, TimeIsUpError
from workloads.trainable import Trainable

NEVER = 1e9
"""The time of a step where none was made."""


def measure_precisions(
    workload: Trainable, config: ProbeConfig, probe: Probe, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """What `config.fit["precisions"]`, `{among, runs, seconds}`, asks for: what each precision came to, `tried`.

    `skipped` says why there is nothing, where it takes longer than it may (`StepRuns`).
    """
    assert config.fit is not None
    asked = config.fit["precisions"]
    seed_everything(config.seed)
    runs = StepRuns(workload, config, asked, clock)
    found: dict[str, list[StepRun]] = {precision: [] for precision in asked["among"]}
    for turn in range(ROUNDS):
        for precision, made in found.items():
            try:
                made.append(runs.train(STEPS, replace(config, precision=precision)))  # type: ignore[arg-type]  # from JSON
            except TimeIsUpError as limit:
                return {"skipped": f"it takes longer than {limit}", "tried": []}
            probe.report(step=turn + 1, lr=0.0)
    return {"tried": [asdict(_summed(precision, made)) for precision, made in found.items()]}


def _summed(precision: str, runs: list[StepRun]) -> Tried:
    # Without the first steps, which are not like the others.
    took = [after - before for run in runs for before, after in pairwise(run.times[WARM_UP - 1 :])]
    reason = next((run.diverged for run in runs if run.diverged), None)
    loss = None if reason else runs[0].losses[-1]
    return Tried(precision, median(took) if took else NEVER, loss, reason)
