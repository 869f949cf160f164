"""What it gains a search to begin with the learning rates that its range test found: real training, in one process.

    python -m bench.range_start [--workloads digits-cnn,digits-two-losses,tabular-mlp] [--seeds 8] [--widths 1,1000]

Every start gets the same search with the same seeds in one slot, the baseline first; the starts differ in what comes
next. Printed: the mean regret of what is recommended after so many full runs, 1 the baseline's loss, 0 the best loss
that anything has come to on that workload. `widths` stretch the searched range of rates at both ends. The range test's
own cost, in full runs, is printed and is not in the marks: a job makes it anyway.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from bench.real_training import job_of, opened, train
from tuner.foreseen import allowance
from tuner.freeze_thaw import FreezeThaw, report_rungs
from tuner.jobspec import Parameter, Range
from tuner.range_phase import SHARE
from tuner.seeds import trial_seed
from tuner.unit_space import UnitSpace
from workloads.contract import ProbeConfig, Stop
from workloads.range_test import measure_rates
from workloads.rates import Rate, RateRange, judge

MARKS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Full runs, of which the baseline takes the first."""
STARTS = ("none", "middle", "best", "both", "drawn")


class Silent:
    """A probe that nobody listens to."""

    steps = 0

    def due(self, step: int) -> bool:
        return False

    def report(self, **_: Any) -> None: ...


@lru_cache(maxsize=64)
def tested(workload: str, width: float, seed: int) -> tuple[RateRange | None, float]:
    """What the job's range test finds, and what it has cost in full runs."""
    job, lr = job_of(workload), stretched(workload, width)["lr"]
    assert isinstance(lr, Range)
    asked = {"low": lr.low, "high": lr.high, **allowance(job, SHARE)}
    config = ProbeConfig(
        job.baseline, {"threads": 1}, trial_seed(seed), job.fidelity, "cpu", "fp32", -1, "bench", fit={"rates": asked}
    )  # fmt: skip
    found = measure_rates(opened(workload), config, Silent())  # type: ignore[arg-type]
    samples = (len(found["rates"]) + 1) * (found.get("steps") or 0) * int(job.baseline["batch_size"])
    tokens = getattr(opened(workload), "tokens_per_sample", None) or 1
    cost = samples * (tokens if job.fidelity.axis == "tokens" else 1) / job.fidelity.max
    if "untrained" not in found:
        return None, cost
    return judge([Rate(**rate) for rate in found["rates"]], found["untrained"]), cost


def stretched(workload: str, width: float) -> Mapping[str, Parameter]:
    space = dict(job_of(workload).space)
    lr = space["lr"]
    assert isinstance(lr, Range)
    space["lr"] = replace(lr, low=lr.low / width, high=lr.high * min(width, 10.0))
    return space


def first_ones(start: str, workload: str, width: float, seed: int) -> list[Mapping[str, Any]]:
    """The configurations after the baseline."""
    found, _ = tested(workload, width, seed)
    if found is None or start == "none":
        return []
    baseline, middle = job_of(workload).baseline, math.sqrt(found.low * found.high)
    if start == "drawn":
        space, rng = UnitSpace(stretched(workload, width)), np.random.default_rng(seed + 1000)
        places = (np.arange(3) + rng.random(3)) / 3
        rates = found.low * (found.high / found.low) ** rng.permutation(places)
        return [{**space.take(space.random(rng, 1)[0]), "lr": float(rate)} for rate in rates]
    chosen = {"middle": [middle], "best": [found.best], "both": [middle, found.best]}[start]
    return [{**baseline, "lr": rate} for rate in chosen]


_curves: dict[str, list[float]] = {}


def value_at(workload: str, given: Mapping[str, Any], index: int, seed: int) -> float:
    """The objective at a report of a run; it is trained that far, once."""
    key = json.dumps([workload, seed, dict(given)], sort_keys=True)
    known = _curves.get(key, [])
    if len(known) < index:
        curve: list[float] = []

        def tell(_index: int, _fraction: float, value: float) -> None:
            curve.append(value)
            if len(curve) == index:
                raise Stop("far enough")

        train(workload, given, tell, seed=trial_seed(seed))
        known = _curves[key] = curve + [math.inf] * (index - len(curve))
    return known[index - 1]


def search(start: str, workload: str, width: float, seed: int) -> list[float]:
    """The loss, at the end of its run, of what is recommended at each mark."""
    job = job_of(workload)
    reports = job.fidelity.reports
    rungs = report_rungs(reports)
    thaw = FreezeThaw(UnitSpace(stretched(workload, width)), seed, [rung / reports for rung in rungs])
    thaw.add(job.baseline, runs_to_end=True)
    waiting = first_ones(start, workload, width, seed)
    spent, at_marks = 0.0, list[float]()
    while len(at_marks) < len(MARKS):
        if waiting and thaw.trials[0].is_over:
            thaw.add(waiting.pop(0))
        step = thaw.propose()
        assert step is not None
        verdict, rung = "continue", step.rung
        while verdict == "continue":
            spent += (rungs[rung] - (rungs[rung - 1] if rung else 0)) / reports
            while len(at_marks) < len(MARKS) and spent > MARKS[len(at_marks)]:
                best = thaw.recommend()
                chosen = job.baseline if best is None else thaw.trials[best].key
                at_marks.append(value_at(workload, chosen, reports, seed))
            verdict = thaw.observe(step.trial, value_at(workload, step.key, rungs[rung], seed))
            rung += 1
    return at_marks


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.range_start", description=__doc__)
    parser.add_argument("--workloads", default="digits-cnn,digits-two-losses,tabular-mlp")
    parser.add_argument("--starts", default=",".join(STARTS))
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--widths", default="1,1000")
    given = parser.parse_args()
    starts = given.starts.split(",")
    print(f"{'':34}" + "".join(f"{mark:8.2f}" for mark in MARKS))
    for workload in given.workloads.split(","):
        for width in map(float, given.widths.split(",")):
            seeds = range(given.seeds)
            losses = {start: [search(start, workload, width, seed) for seed in seeds] for start in starts}
            show(workload, width, losses, given.seeds)
    return 0


def show(workload: str, width: float, losses: Mapping[str, Sequence[Sequence[float]]], seeds: int) -> None:
    job = job_of(workload)
    base = [value_at(workload, job.baseline, job.fidelity.reports, seed) for seed in range(seeds)]
    lowest = [min(loss for runs in losses.values() for loss in runs[seed]) for seed in range(seeds)]
    for start, runs in losses.items():
        regrets = [
            [(loss - low) / max(one - low, 1e-9) for loss in run]
            for run, low, one in zip(runs, lowest, base, strict=True)
        ]
        means = [statistics.fmean(min(2.0, regret) for regret in at) for at in zip(*regrets, strict=True)]
        print(f"{workload:18} x{width:<6g} {start:7}" + "".join(f"{mean:8.3f}" for mean in means), flush=True)
    cost = statistics.fmean(tested(workload, width, seed)[1] for seed in range(seeds))
    print(f"{workload:18} x{width:<6g} the range test took {cost:.2f} full runs", flush=True)


if __name__ == "__main__":
    sys.exit(main())
