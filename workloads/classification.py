"""What the built-ins that tell classes apart share: their splits, the smoothed loss, and the evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from workloads.batches import Data
from workloads.data import Arrays
from workloads.losses import cross_entropy
from workloads.training import TrainingWorkload


class Classifier(TrainingWorkload):
    """Inputs and labels by split, from prepared arrays called `train_{inputs}`, `train_labels` and so on.

    A model may have a `label_smoothing` and a `focal_gamma`; they are for training only, evaluation is without.
    """

    def __init__(self, arrays: Arrays, inputs: str) -> None:
        self._data = {
            split: (torch.from_numpy(arrays[f"{split}_{inputs}"]), torch.from_numpy(arrays[f"{split}_labels"]))
            for split in ("train", "validation", "test")
        }

    def train_data(self) -> Data:
        return self._data["train"]

    def eval_data(self) -> Data:
        return self._data["validation"]

    def test_data(self) -> Data:
        return self._data["test"]

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        inputs, labels = batch
        smoothing, gamma = (float(getattr(model, name, 0.0)) for name in ("label_smoothing", "focal_gamma"))
        return cross_entropy(model(inputs), labels, label_smoothing=smoothing, focal_gamma=gamma)

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        inputs, labels = data
        logits = model(inputs).float()
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"val_loss": float(cross_entropy(logits, labels)), "val_accuracy": float(accuracy)}
