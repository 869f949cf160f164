"""The user's own class, which the one training loop trains: its methods, each held to what it has to give."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from workloads.batches import Data
from workloads.contract import PROGRESS, Parameters, Probe, ProbeConfig
from workloads.memory_proof import FitProbe, measure
from workloads.trainable import Trainable
from workloads.training import train_watched

ACCEPTED = "a tuple of tensors of equal length, one tensor, or a dataset with len() and [index]"


class UserClass:
    """A workload around an instance of the user's class.

    What `evaluate` gives as one number is called `metric`, the job's objective. Raises TypeError or ValueError, naming
    the method, for what the loop cannot use.
    """

    can_pause = True

    def __init__(self, trained: Trainable, metric: str) -> None:
        self._trained, self._metric = trained, metric
        self._name = type(trained).__name__
        self.tokens_per_sample: int | None = getattr(trained, "tokens_per_sample", None)
        for name in ("test_data", "collate"):
            if hasattr(trained, name):
                setattr(self, name, getattr(trained, name))

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        train_watched(self, self._prepared(config), probe)

    def measure(self, config: ProbeConfig, probe: FitProbe) -> dict[str, Any]:
        """What phase fit wants to know (`workloads.memory_proof.measure`)."""
        return measure(self, self._prepared(config), probe)

    @staticmethod
    def _prepared(config: ProbeConfig) -> ProbeConfig:
        threads = int(os.environ.get("OMP_NUM_THREADS") or 1)
        return replace(config, derived={"threads": threads, **config.derived})

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model: object = self._trained.model(Parameters(config))
        if not isinstance(model, nn.Module):
            raise TypeError(self._wrong("model", "a torch.nn.Module", model))
        return model

    def train_data(self) -> Data:
        return self._checked_data(self._trained.train_data())

    def eval_data(self) -> Data:
        return self._trained.eval_data()

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        loss: object = self._trained.loss(model, batch)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(self._wrong("loss", "a tensor, the mean loss of the batch", loss))
        if loss.numel() != 1:
            shape = tuple(loss.shape)
            raise ValueError(
                f"{self._name}.loss has to return one number, the mean over the batch; its shape is {shape}"
            )
        if not loss.requires_grad:
            raise ValueError(
                f"{self._name}.loss does not depend on the model's parameters; was it detached, or a number?"
            )
        return loss.reshape(())

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        given: object = self._trained.evaluate(model, data)
        metrics = given if isinstance(given, Mapping) else {self._metric: given}
        reserved = [name for name in metrics if name in PROGRESS]
        if reserved:
            what = f"{', '.join(reserved)} says how far the run is, which x5tune does itself"
            raise ValueError(f"{self._name}.evaluate has to return metrics under other names: {what}")
        return {str(name): self._number(name, value) for name, value in metrics.items()}

    def _number(self, name: object, value: object) -> float:
        if not isinstance(value, str | bytes | bool) and value is not None:
            try:
                return float(value)  # type: ignore[arg-type]  # anything with __float__
            except (TypeError, ValueError):
                pass
        what = f"{type(value).__name__} {value!r:.80}"
        raise TypeError(
            f"{self._name}.evaluate has to return a number, or names with a number each; for {name!r} it is {what}"
        )

    def _wrong(self, method: str, wanted: str, given: object) -> str:
        return f"{self._name}.{method} has to return {wanted}, and it returned {type(given).__name__}"

    def _checked_data(self, data: Any) -> Data:
        problem = data_problem(data)
        if problem:
            raise TypeError(f"{self._name}.train_data {problem}")
        found: Data = data
        return found


def data_problem(data: Any) -> str | None:
    """Why the loop cannot take batches from `data`, None when it can."""
    if isinstance(data, DataLoader):
        return "returned a DataLoader; return its dataset: batching and seeded shuffling are x5tune's"
    if isinstance(data, IterableDataset):
        return f"returned an IterableDataset, which has no order that a seed could decide; return {ACCEPTED}"
    if isinstance(data, tuple):
        strange = [type(item).__name__ for item in data if not isinstance(item, torch.Tensor)]
        if strange or not data:
            return f"returned a tuple with {strange[0] if strange else 'nothing'} in it; return {ACCEPTED}"
        lengths = [len(item) if item.ndim else 0 for item in data]
        if len(set(lengths)) > 1:
            return f"returned tensors of different lengths: {', '.join(map(str, lengths))}"
        return None if lengths[0] else "returned no samples"
    if isinstance(data, list) and data and all(isinstance(item, torch.Tensor) for item in data):
        return "returned a list of tensors; return a tuple for inputs and labels, a Dataset for single samples"
    if isinstance(data, Mapping) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return f"returned {type(data).__name__}; return {ACCEPTED}"
    try:
        return None if len(data) else "returned no samples"
    except (TypeError, ValueError, OverflowError) as error:
        return f"returned {type(data).__name__}, whose len() cannot be used ({error}); return {ACCEPTED}"
