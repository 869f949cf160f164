"""What earlier jobs leave behind for `bench.replay`: the other tables of the same family, whole.

* identity: a setting that an old task has tried is known again, and keeps the score that it had there.
* values: the old tasks are known by the values of their settings only; none is known again.
* values-disjoint: the same, and the old tasks have tried one random half of the settings, the job may try the other.
* shuffled: in each old task the curves are dealt out to the settings at random: history that says nothing.
* shuffled-common: the same with one permutation for all old tasks: they agree with each other, and all are wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from bench.replay_methods import Task
from tuner import history
from tuner.chain_scores import Standings
from tuner.history import History

MODES = ("identity", "values", "values-disjoint", "shuffled", "shuffled-common")

Index = npt.NDArray[np.intp]


def with_history(task: Task, others: Sequence[Task], mode: str, seed: int) -> Task:
    """The table as a job finds it that comes after the other tables of its family; without any it is cold."""
    rng = np.random.default_rng([seed, MODES.index(mode)])
    count = len(task.unit)
    old, new = np.arange(count), np.arange(count)
    if mode == "values-disjoint":
        mixed = rng.permutation(count)
        old, new = np.sort(mixed[: count // 2]), np.sort(mixed[count // 2 :])
    common = rng.permutation(count)
    told = []
    for other in others:
        last = other.curves[np.arange(len(other.lengths)), other.lengths - 1]
        if mode == "shuffled-common":
            last = last[common] if len(last) == count else rng.permutation(last)
        elif mode == "shuffled":
            last = rng.permutation(last)
        kept = old[old < len(last)]
        told.append(history.Task(other.unit[kept], regrets(last[kept]), np.full(len(kept), 0.05)))
    if mode == "values-disjoint":
        finals = task.curves[new, task.lengths[new] - 1]
        best, median = float(np.nanmin(finals)), float(np.nanmedian(finals))
        task = replace(
            task, unit=task.unit[new], curves=task.curves[new], lengths=task.lengths[new], best=best, median=median
        )
    if not told:
        return task
    known = History(told, seed, recognises=mode not in ("values", "values-disjoint"), support=600)
    known.prepare(task.unit)
    return replace(task, history=known)


def regrets(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The regret of each final value as an earlier job's; what is not finite is the worst."""
    standings = Standings(1)
    for number, value in enumerate(values):
        standings.add(number, 0, float(value) if np.isfinite(value) else np.inf)
    found = standings.regrets()
    return np.array([found[number] for number in range(len(values))])
