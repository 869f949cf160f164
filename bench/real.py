"""Tuners on real training with the same compute: what they recommend, trained anew and scored on the test split.

    python -m bench.real [--workloads digits-cnn,byte-lm] [--methods x5tune,ray-tune,optuna,random]
                         [--full-runs 20] [--seeds 5] [--fresh 3] [--out FILE]

With `--out` every search is a line of that file, and one that is there already, of as many runs, is not made again.

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
from typing import TextIO

from bench.real_methods import METHODS
from bench.real_training import Account, Parameters, train
from tuner.cluster import Cluster, ray_cluster
from tuner.seeds import fresh_seeds

Search = tuple[str, str, int, float, int]
"""A workload, a method, its seed, its compute in full runs, and the fresh runs by which it is scored."""

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
    parser.add_argument("--out", type=Path, help="keep every search in this file, as JSON lines")
    given = parser.parse_args()
    methods = given.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"unknown methods: {', '.join(unknown)}; known are {', '.join(METHODS)}")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(None))
        known = kept(given.out) if given.out else {}
        out = stack.enter_context(given.out.open("a")) if given.out else None
        for workload in given.workloads.split(","):
            losses: dict[str, list[list[float]]] = {name: [] for name in methods}
            for seed in range(given.seeds):
                for name in methods:
                    search = (workload, name, seed, given.full_runs, given.fresh)
                    if search not in known:
                        known[search] = made(search, cluster, out)
                    losses[name].append(known[search])
            show(workload, losses)
    return 0


def kept(path: Path) -> dict[Search, list[float]]:
    """The losses of the searches in a file; of none where there is no file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        (one["workload"], one["method"], one["seed"], one["full_runs"], one["fresh"]): one["losses"] for one in lines
    }


def made(search: Search, cluster: Cluster, out: TextIO | None) -> list[float]:
    """The loss on the test split of what a tuner recommends at each mark."""
    workload, name, seed, full_runs, fresh = search
    account = Account(full_runs)
    METHODS[name](workload, account, seed, cluster)
    at_marks = [account.at(mark * full_runs) for mark in MARKS]
    losses = [math.inf if p is None else test_loss(workload, p, seed, fresh) for p in at_marks]
    if out is not None:
        known = {"workload": workload, "method": name, "seed": seed, "full_runs": full_runs, "fresh": fresh}
        out.write(json.dumps({**known, "losses": losses, "at": at_marks, "spent": account.spent}) + "\n")
        out.flush()
    return losses


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
