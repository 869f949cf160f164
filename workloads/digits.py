"""digits-cnn: handwritten digits, 8x8 pixels, with a small convolutional network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from workloads.classification import Classifier
from workloads.data import Array, Arrays, cached, fingerprint, sklearn_file, stratified_split

SPLITS = {"train": 0.6, "validation": 0.2, "test": 0.2}


def prepare() -> Arrays:
    """`{split}_images` (N, 1, 8, 8) in 0..1 and `{split}_labels` (N,)."""
    source = sklearn_file("digits.csv.gz")
    return cached("digits", fingerprint("1", source.read_bytes()), lambda: _build(np.loadtxt(source, delimiter=",")))


def _build(table: Array) -> Arrays:
    images = (table[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    labels = table[:, -1].astype(np.int64)
    arrays: dict[str, Array] = {}
    for split, indices in zip(SPLITS, stratified_split(labels, list(SPLITS.values())), strict=True):
        arrays[f"{split}_images"], arrays[f"{split}_labels"] = images[indices], labels[indices]
    return arrays


class DigitNetwork(nn.Module):
    """One strided convolution and two dense layers; carries what shapes its training loss."""

    def __init__(self, dropout: float, label_smoothing: float, focal_gamma: float) -> None:
        super().__init__()
        self.label_smoothing, self.focal_gamma = label_smoothing, focal_gamma
        self.layers = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 72),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(72, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images)
        return logits


class DigitsCNN(Classifier):
    """The default workload."""

    def __init__(self) -> None:
        super().__init__(prepare(), "images")

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        names = ("dropout", "label_smoothing", "focal_gamma")
        return DigitNetwork(*(float(config.get(name, 0.0)) for name in names))
