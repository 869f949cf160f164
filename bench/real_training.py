"""What the tuners of `bench.real` tune: a built-in workload trained in this process, its compute counted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tuner.derivation import derive
from tuner.device import find_device
from tuner.jobspec import ResolvedJob
from tuner.spec import resolve
from workloads.channel import read_config
from workloads.contract import Diverged, Stop, Workload
from workloads.horizon import Horizon
from workloads.open import open_workload

Parameters = Mapping[str, Any]


@lru_cache(maxsize=4)
def opened(workload: str) -> Workload:
    """The workload with its data, once a process."""
    return open_workload(workload)


@lru_cache(maxsize=4)
def job_of(workload: str) -> ResolvedJob:
    """The workload with its default space, baseline and horizon."""
    return resolve({"workload": workload}).job


def train(
    workload: str,
    parameters: Parameters,
    report: Callable[[int, float, float], None],
    *,
    seed: int,
    split: str = "validation",
) -> float:
    """Train once; the last value of the objective, infinity where it diverged.

    `report` gets the report's index (1 to the number of reports), the fraction of a full run that is trained by now,
    and the value; it may raise `Stop`.
    """
    job = job_of(workload)
    config = {
        "parameters": dict(parameters),
        "derived": derive(parameters),
        "seed": seed,
        "fidelity": job.fidelity.to_json(),
        "device": "cpu",
        "precision": find_device(0.0).precision("auto"),
        "trial": 0,
        "job_id": "bench",
        "split": split,
    }
    read = read_config(json.dumps(config))
    built = opened(workload)
    horizon = Horizon.of(read.fidelity, int(parameters["batch_size"]), getattr(built, "tokens_per_sample", None))
    probe = _Probe(horizon, job.objective.metric, report)
    try:
        built.run(read, probe)
    except Stop:
        return probe.last
    except Diverged:
        return math.inf
    return probe.last


class _Probe:
    def __init__(self, horizon: Horizon, metric: str, report: Callable[[int, float, float], None]) -> None:
        self._horizon, self._metric, self._report = horizon, metric, report
        self.last = math.inf
        self.steps = horizon.steps

    def due(self, step: int) -> bool:
        return self._horizon.due(step)

    def report(self, *, step: int, **metrics: float) -> None:
        position = self._horizon.position(step)
        self._horizon.resume(step, position)
        value = float(metrics[self._metric])
        self.last = value if math.isfinite(value) else math.inf
        fidelity = self._horizon.fidelity
        self._report(fidelity.index(position), min(1.0, position / fidelity.max), self.last)


class SpentError(Exception):
    """The compute that was given to a tuner is used up."""


@dataclass
class Account:
    """A tuner's compute in full runs, and what it recommended when: the configuration with the best value seen."""

    budget: float
    spent: float = 0.0
    best: float = math.inf
    recommended: list[tuple[float, Parameters]] = field(default_factory=list)

    def spend(self, parameters: Parameters, fraction: float, value: float) -> None:
        """Another part of a run is trained. Raises SpentError past the budget."""
        self.spent += fraction
        if value < self.best:
            self.best = value
            self.recommend(parameters)
        if self.spent >= self.budget - 1e-9:
            raise SpentError

    def recommend(self, parameters: Parameters) -> None:
        self.recommended.append((self.spent, dict(parameters)))

    def at(self, mark: float) -> Parameters | None:
        """What was recommended when `mark` full runs were spent."""
        return next((given for spent, given in reversed(self.recommended) if spent <= mark + 1e-9), None)
