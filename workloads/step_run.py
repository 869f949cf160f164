"""A few steps of the job's own training, each looked at, without any evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workloads.contract import Diverged, Fidelity, ProbeConfig, Stop
from workloads.trainable import Trainable, collate, tokens_per_sample
from workloads.training import train


class TimeIsUpError(Exception):
    """The runs have taken as long as they may."""


class StepRun:
    """A probe of so many steps: the training loss of each, when it was over, and why the run `diverged`, if it did."""

    Stop = Stop

    def __init__(self, steps: int, is_late: Callable[[], bool]) -> None:
        self.steps = steps
        self.losses: list[float] = []
        self.times: list[float] = []
        self.diverged: str | None = None
        self._is_late = is_late

    def due(self, step: int) -> bool:  # noqa: ARG002 - every step is
        return True

    def report(self, *, step: int, **metrics: float) -> None:  # noqa: ARG002 - they come in order
        self.times.append(time.perf_counter())
        self.losses.append(metrics["train_loss"])
        if self._is_late():
            raise TimeIsUpError

    def train(self, workload: Trainable, config: ProbeConfig) -> None:
        """Train as `config` says, but for the length. Raises TimeIsUpError."""
        fidelity = Fidelity("steps", self.steps, self.steps)
        try:
            train(workload, replace(config, fidelity=fidelity, split="validation"), self)
        except Diverged as error:
            self.diverged = str(error)


class TrainedOnly:
    """`workload` without its evaluations; its training data are read once."""

    def __init__(self, workload: Trainable) -> None:
        self.model, self.loss, self.collate = workload.model, workload.loss, collate(workload)
        self.tokens_per_sample = tokens_per_sample(workload)
        self._data = workload.train_data()

    def train_data(self) -> Any:
        return self._data

    def eval_data(self) -> Any:
        return ()

    def evaluate(self, model: object, data: object, /) -> Mapping[str, float]:  # noqa: ARG002
        return {}
