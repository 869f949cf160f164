"""Some steps of the job's own training in each precision: how long they take, and whether the loss is the same."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from itertools import pairwise
from statistics import median
from typing import Any

from workloads.checkpoint import seed_everything
from workloads.contract import Probe, ProbeConfig
from workloads.precisions import ROUNDS, STEPS, WARM_UP, Tried
from workloads.step_run import StepRun, TimeIsUpError, TrainedOnly
from workloads.team import Team
from workloads.trainable import Trainable

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
    found: dict[str, list[StepRun]] = {precision: [] for precision in asked["among"]}
    for turn in range(ROUNDS):
        for precision, runs in found.items():
            run = StepRun(STEPS, lambda: team.from_lead(lambda: time.monotonic() > ends_at))
            try:
                run.train(trained, replace(config, precision=precision))  # type: ignore[arg-type]  # from JSON
            except TimeIsUpError:
                return {"skipped": f"it takes longer than {asked['seconds']:.3g} s", "tried": []}
            runs.append(run)
            probe.report(step=turn + 1, lr=0.0)
    return {"tried": [asdict(_summed(precision, runs)) for precision, runs in found.items()]}


def _summed(precision: str, runs: list[StepRun]) -> Tried:
    # Without the first steps, which are not like the others.
    took = [after - before for run in runs for before, after in pairwise(run.times[WARM_UP - 1 :])]
    reason = next((run.diverged for run in runs if run.diverged), None)
    loss = None if reason else runs[0].losses[-1]
    return Tried(precision, median(took) if took else NEVER, loss, reason)
