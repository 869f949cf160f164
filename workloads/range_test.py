"""The learning rate range test: the same short training once for each of some rates.

Smith 2017 (arXiv:1506.01186) raises the rate from step to step in one run. Here each rate has a run of its own, with
its warm-up and decay, from the same weights on the same samples: what a run at one rate has done to the weights is
not held against the next rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import mean
from typing import Any

from workloads.checkpoint import seed_everything
from workloads.contract import Probe, ProbeConfig
from workloads.horizon import UNREACHED_STEPS
from workloads.out_of_memory import is_out_of_memory
from workloads.rates import MIN_TOTAL, Rate, log_spaced, plan, too_little
from workloads.step_run import StepRun, StepRuns, TimeIsUpError
from workloads.team import Team
from workloads.trainable import Trainable

NO_RATE = 1e-9
"""Of the lowest rate: too little to change a weight."""
REASON_LENGTH = 200
LAST_SHARE = 0.25
"""Of a run's steps, how many its last loss is the mean of."""


def measure_rates(
    workload: Trainable, config: ProbeConfig, probe: Probe, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """What `config.fit["rates"]`, `{low, high, runs, seconds}`, asks for: the rates and what each came to.

    `runs` is what may be trained altogether, in full runs, `seconds` what that may take (`StepRuns`); too little of
    either, and `skipped` says so. `untrained` is the loss of the same batches without training. What raises at a rate
    though not without training counts as diverged there, as some losses refuse what is not finite; memory that ran out
    does not, nor what raises in one process of several, for which the others would wait.
    """
    assert config.fit is not None
    asked = config.fit["rates"]
    seed_everything(config.seed)
    runs = StepRuns(workload, config, asked, clock)
    share = 2 * MIN_TOTAL if runs.full_steps == UNREACHED_STEPS else float(asked["runs"]) * runs.full_steps
    planned = plan(int(share))
    if planned is None:
        return {"skipped": too_little(share), "rates": []}
    count, steps = planned
    low, high = float(asked["low"]), float(asked["high"])
    found: list[Rate] = []
    for lr in [low * NO_RATE, *log_spaced(low, high, count)]:
        try:
            run = runs.train(steps, replace(config, parameters={**config.parameters, "lr": lr}))
        except TimeIsUpError as limit:
            why = f"{max(0, len(found) - 1)} of {count} rates had run after {limit}"
            return {"skipped": why, "steps": steps, "rates": [asdict(rate) for rate in found[1:]]}
        except Exception as error:
            if not found or Team.current().size > 1 or is_out_of_memory(error):
                raise
            found.append(Rate(lr, None, f"{type(error).__name__}: {error}"[:REASON_LENGTH]))
        else:
            found.append(_rate(lr, run))
        probe.report(step=len(found), lr=lr)
    untrained, *rates = found
    if untrained.loss is None:
        return {"skipped": f"without training already, {untrained.reason}", "steps": steps, "rates": []}
    return {"steps": steps, "untrained": untrained.loss, "rates": [asdict(rate) for rate in rates]}


def _rate(lr: float, run: StepRun) -> Rate:
    last = run.losses[-max(1, round(LAST_SHARE * run.steps)) :]
    return Rate(lr, None if run.diverged else mean(last), run.diverged)
