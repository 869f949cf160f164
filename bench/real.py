"""Tuners on real training with the same compute: what they recommend, trained anew and scored on the test split.

    python -m bench.real [--workloads digits-cnn,byte-lm] [--methods x5tune,ray-tune,optuna,random]
                         [--full-runs 20] [--seeds 5] [--fresh 3] [--out FILE]

Every tuner begins with the baseline and searches the workload's default space in one slot until the compute (in runs to
the full horizon) is spent. At each mark what it recommends is trained at full length on `fresh` seeds that no tuner
has seen, and scored on the test split. Printed: the mean test loss at each mark, and the compute after which it was as
good as random search at the end, as a ratio to all that random search was given.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.real_methods import METHODS
from bench.real_training import Account, Parameters, train
from tuner.cluster import ray_cluster
from tuner.seeds import fresh_seeds

MARKS = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Fractions of the compute."""

_scored: dict[tuple[str, str, int], float] = {}


def test_loss(workload: str, parameters: Parameters, seed: int, fresh: int) -> float:
    """Mean loss on the test split over fresh seeds; infinity when one of them diverges."""
    found = []
    for number in fresh_seeds(seed, fresh):
        key = (workload, json.dumps(parameters, sort_keys=True), number)
        if key not in _scored:
            _scored[key] = train(workload, parameters, lambda *_: None, seed=number, split="test")
        found.append(_scored[key])
    return statistics.fmean(found)


def compute_to_reach(losses: Sequence[float], target: float) -> float:
    """The first mark, a fraction of the compute, from which on the loss is at most `target`; infinity for never."""
    reached = math.inf
    for mark, loss in reversed(list(zip(MARKS, losses, strict=True))):
        if loss > target:
            break
        reached = mark
    return reached


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.real", description=__doc__)
    parser.add_argument("--workloads", default="digits-cnn,byte-lm")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"any of {', '.join(METHODS)}")
    parser.add_argument("--full-runs", type=float, default=20.0, help="compute of each tuner")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--fresh", type=int, default=3, help="runs by which a recommendation is scored")
    parser.add_argument("--out", type=Path, help="also write every loss to this file, as JSON lines")
    given = parser.parse_args()
    methods = given.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"unknown methods: {', '.join(unknown)}; known are {', '.join(METHODS)}")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(None))
        out = stack.enter_context(given.out.open("w")) if given.out else None
        for workload in given.workloads.split(","):
            losses: dict[str, list[list[float]]] = {name: [] for name in methods}
            for seed in range(given.seeds):
                for name in methods:
                    account = Account(given.full_runs)
                    METHODS[name](workload, account, seed, cluster)
                    at_marks = [account.at(mark * given.full_runs) for mark in MARKS]
                    told = [math.inf if p is None else test_loss(workload, p, seed, given.fresh) for p in at_marks]
                    losses[name].append(told)
                    if out:
                        line = {"workload": workload, "method": name, "seed": seed, "losses": told, "at": at_marks}
                        out.write(json.dumps({**line, "spent": account.spent}) + "\n")
                        out.flush()
            show(workload, losses)
    return 0


def show(workload: str, losses: dict[str, list[list[float]]]) -> None:
    """A line a method: loss by mark, and how much of random search's compute takes it to random search's loss."""
    print(f"{workload}: mean test loss of the recommendation after a share of the compute")
    means = {name: [statistics.fmean(at) for at in zip(*runs, strict=True)] for name, runs in losses.items()}
    for name, line in means.items():
        cells = "  ".join(f"{mark:4.0%} {loss:.4f}" for mark, loss in zip(MARKS, line, strict=True))
        reach = f"{compute_to_reach(line, means['random'][-1]):.0%}" if "random" in means else "?"
        print(f"  {name:9} {cells}  as good as random search after {reach} of its compute", flush=True)


if __name__ == "__main__":
    sys.exit(main())
