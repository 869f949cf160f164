"""Tuners replayed on tables of real learning curves: how good is what they recommend, for how much compute?

    python -m bench.replay --tables DIR [--methods x5,random,tpe,tpe+hyperband,tpe+median,gp,asha] [--seeds 20]
                           [--workers 1] [--history DIR] [--history-mode identity|values|...] [--out FILE]

A table is a pool of configurations with their curves (`numpy.load(path)`: meta, params, curves; lower is better). A
step of one configuration costs 1; one *full run* is the mean own length. The recommendation is scored by that
configuration's value at its own full length: regret = (value - best) / (median - best). With several workers every
step takes its cost in time, and a mark is the compute of all of them together. Without a recommendation yet the regret
is that of the median, 1.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.replay_history import MODES, with_history
from bench.replay_methods import METHODS, Method, Task

MARKS = (0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 10.0, 20.0)

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Run:
    """One method on one table with one seed: regret at each mark, seconds of each decision."""

    method: str
    family: str
    table: str
    regrets: tuple[float, ...]
    decisions_s: tuple[float, ...]


def load(path: Path) -> Task:
    """A table, its parameters scaled to the unit cube."""
    with np.load(path) as stored:
        meta = json.loads(str(stored["meta"]))
        params, curves = stored["params"].astype(float), stored["curves"].astype(float)
    unit = np.empty_like(params)
    for column, scale in enumerate(meta["param_scales"]):
        values = params[:, column]
        values = np.log(values) if scale == "log" else np.log(1 - values) if scale == "log1m" else values
        unit[:, column] = (values - values.min()) / max(float(np.ptp(values)), 1e-12)
    lengths = curves.shape[1] - np.argmax(~np.isnan(curves[:, ::-1]), axis=1)
    return Task(meta["name"], meta["family"], float(meta["best"]), float(meta["median"]), unit, curves, lengths)


def replay(task: Task, name: str, seed: int, workers: int) -> Run:
    """Run one method on one table until the last mark."""
    full = float(task.lengths.mean())
    method: Method = METHODS[name](task, seed)
    regrets: list[float] = []
    decisions: list[float] = []
    marks = [mark * full / workers for mark in MARKS]
    order = itertools.count()
    running: list[tuple[float, int, Any]] = []

    def look(until: float) -> None:
        while len(regrets) < len(marks) and until > marks[len(regrets)]:
            regrets.append(task.regret(method.recommend()))

    def give_work(now: float) -> None:
        while len(running) < workers:
            began = time.perf_counter()
            work = method.propose()
            decisions.append(time.perf_counter() - began)
            if work is None:
                return
            heapq.heappush(running, (now + work.steps, next(order), work))

    give_work(0.0)
    while running and len(regrets) < len(marks):
        now, _, work = heapq.heappop(running)
        look(now)
        began = time.perf_counter()
        method.observe(work)
        observed = time.perf_counter() - began
        first = len(decisions)
        give_work(now)
        decisions[first] += observed
    look(math.inf)
    return Run(name, task.family, task.name, tuple(regrets), tuple(decisions))


@dataclass(frozen=True, slots=True)
class Order:
    """One replay to be computed."""

    path: Path
    method: str
    seed: int
    workers: int
    history: Path | None = None
    mode: str = "identity"


def _replay(order: Order) -> Run:
    if order.history is None:
        task = load(order.path)
    else:
        # With a seed the history differs only where chance has a part in it.
        seed = order.seed if order.mode in ("values-disjoint", "shuffled", "shuffled-common") else 0
        task = _after_others(order.path, order.history, order.mode, seed)
    return replay(task, order.method, order.seed, order.workers)


@lru_cache(maxsize=1)
def _after_others(path: Path, folder: Path, mode: str, seed: int) -> Task:
    task = load(path)
    others = (load(other) for other in sorted(folder.glob("*.npz")))
    return with_history(task, [o for o in others if o.family == task.family and o.name != task.name], mode, seed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="a folder of tables (.npz)")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"any of {', '.join(METHODS)}")
    parser.add_argument("--history", type=Path, help="a folder of tables that earlier jobs have left behind")
    parser.add_argument("--history-mode", choices=MODES, default=MODES[0], help="see bench/replay_history.py")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1, help="slots that train side by side")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="replays that are computed side by side")
    parser.add_argument("--out", type=Path, help="also write every regret to this file, as JSON lines")
    given = parser.parse_args()
    methods = given.methods.split(",")
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"unknown methods: {', '.join(unknown)}; known are {', '.join(METHODS)}")
    paths = sorted(given.tables.glob("*.npz"))
    if not paths:
        parser.error(f"there is no table (.npz) in {given.tables}")
    # Read as the children import numpy: threads of BLAS on small matrices cost more than they give.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ProcessPoolExecutor(given.processes, get_context("spawn")))
        out = stack.enter_context(given.out.open("w")) if given.out else None
        for name in methods:
            orders = [
                Order(path, name, seed, given.workers, given.history, given.history_mode)
                for path in paths
                for seed in range(given.seeds)
            ]
            runs = list(pool.map(_replay, orders, chunksize=max(1, min(4, given.seeds))))
            for line in table(name, runs):
                print(line, flush=True)
            if out:
                for order, run in zip(orders, runs, strict=True):
                    told = {"method": name, "table": run.table, "seed": order.seed, "regrets": run.regrets}
                    out.write(json.dumps(told) + "\n")
    return 0


def table(name: str, runs: Sequence[Run]) -> Iterator[str]:
    """Mean regret at each mark by family and over all, its standard error over seeds, and the time of a decision."""
    by_family: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for run in runs:
        by_family.setdefault(run.family, {}).setdefault(run.table, []).append(run.regrets)
    means, variances = [], []
    for family, tables in sorted(by_family.items()):
        each = np.array([np.mean(regrets, axis=0) for regrets in tables.values()])
        spread = np.array(
            [np.var(regrets, axis=0, ddof=1) / len(regrets) for regrets in tables.values() if len(regrets) > 1]
        )
        means.append(each.mean(axis=0))
        variances.append(spread.sum(axis=0) / len(tables) ** 2 if len(spread) else np.full(len(MARKS), np.nan))
        yield _row(name, family, means[-1], np.sqrt(variances[-1]))
    yield _row(name, "all", np.mean(means, axis=0), np.sqrt(np.sum(variances, axis=0)) / len(means))
    seconds = sorted(itertools.chain.from_iterable(run.decisions_s for run in runs))
    late = seconds[int(len(seconds) * 0.95)]
    middle = statistics.median(seconds)
    yield f"{name:14} a decision takes {middle * 1e3:.2f} ms (median), {late * 1e3:.2f} ms (95th percentile)"


def _row(name: str, family: str, means: Vector, errors: Vector) -> str:
    cells = (f"{mark:g}x {mean:.3f}±{error:.3f}" for mark, mean, error in zip(MARKS, means, errors, strict=True))
    return f"{name:14} {family:9} {'  '.join(cells)}"


if __name__ == "__main__":
    sys.exit(main())
