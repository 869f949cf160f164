"""tabular-mlp: breast cancer diagnosis from 30 measurements of cell nuclei, with a small dense network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.classification import Classifier
from workloads.data import Array, Arrays, cached, fingerprint, sklearn_file, stratified_split

SPLITS = {"train": 0.5, "validation": 0.25, "test": 0.25}


def prepare() -> Arrays:
    """`{split}_features` (N, 30), standardized by the training part's mean and deviation, and `{split}_labels` (N,)."""
    source = sklearn_file("breast_cancer.csv")
    key = fingerprint("1", source.read_bytes())
    return cached("tabular", key, lambda: _build(np.loadtxt(source, delimiter=",", skiprows=1)))


def _build(table: Array) -> Arrays:
    features, labels = table[:, :-1], table[:, -1].astype(np.int64)
    parts = stratified_split(labels, list(SPLITS.values()))
    mean, deviation = features[parts[0]].mean(0), features[parts[0]].std(0)
    arrays: dict[str, Array] = {}
    for split, indices in zip(SPLITS, parts, strict=True):
        arrays[f"{split}_features"] = ((features[indices] - mean) / deviation).astype(np.float32)
        arrays[f"{split}_labels"] = labels[indices]
    return arrays


class TabularNetwork(nn.Module):
    """Two hidden layers; carries what shapes its training loss."""

    def __init__(self, dropout: float, label_smoothing: float, focal_gamma: float) -> None:
        super().__init__()
        self.label_smoothing, self.focal_gamma = label_smoothing, focal_gamma
        self.layers = nn.Sequential(
            nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 2)
        )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(features)
        return logits


class TabularMLP(Classifier):
    """A few hundred rows: quick to train and easy to overfit."""

    def __init__(self) -> None:
        super().__init__(prepare(), "features")

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        names = ("dropout", "label_smoothing", "focal_gamma")
        return TabularNetwork(*(float(config.get(name, 0.0)) for name in names))
