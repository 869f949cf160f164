"""digits-two-losses: one network that names a handwritten digit and draws it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from workloads.classification import Classifier
from workloads.digits import prepare
from workloads.losses import UncertaintyWeights, cross_entropy


class TwoHeads(nn.Module):
    """A shared layer, a head for the class and one for the pixels; carries how its two losses are made one."""

    def __init__(self, dropout: float, label_smoothing: float, focal_gamma: float, *, is_weighted: bool) -> None:
        super().__init__()
        self.label_smoothing, self.focal_gamma = label_smoothing, focal_gamma
        self.shared = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Dropout(dropout))
        self.name, self.draw = nn.Linear(96, 10), nn.Linear(96, 64)
        self.weights = UncertaintyWeights(2) if is_weighted else None

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (N, 10) and pixels (N, 64)."""
        features = self.shared(images)
        return self.name(features), self.draw(features)


class DigitsTwoLosses(Classifier):
    """`val_loss` is the cross entropy alone, whatever the weights, so that trials can be compared."""

    def __init__(self) -> None:
        super().__init__(prepare(), "images")

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        names = ("dropout", "label_smoothing", "focal_gamma")
        is_weighted = config.get("loss_weighting", "uncertainty") == "uncertainty"
        return TwoHeads(*(float(config.get(name, 0.0)) for name in names), is_weighted=is_weighted)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        assert isinstance(model, TwoHeads)
        images, labels = batch
        logits, pixels = model(images)
        named = cross_entropy(logits, labels, label_smoothing=model.label_smoothing, focal_gamma=model.focal_gamma)
        drawn = F.mse_loss(pixels.float(), images.flatten(1))
        return named + drawn if model.weights is None else model.weights(named, drawn)

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        images, labels = data
        logits, pixels = (output.float() for output in model(images))
        return {
            "val_loss": float(cross_entropy(logits, labels)),
            "val_accuracy": float((logits.argmax(1) == labels).float().mean()),
            "val_reconstruction": float(F.mse_loss(pixels, images.flatten(1))),
        }
