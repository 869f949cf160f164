"""A transformer and a convolutional network to be fitted, as a user's classes; random data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

SAMPLES = 4096
HELD_OUT = 64


class Classified:
    """What both share: the loss and the evaluation."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class Transformer(Classified):
    """Two encoder layers of width 64 over 64 bytes; tells which of ten classes a text is."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return nn.Sequential(nn.Embedding(256, 64), encoder, nn.Flatten(), nn.Linear(64 * 64, 10))

    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(SAMPLES)

    def eval_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(HELD_OUT)

    def _random(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 256, (count, 64)), torch.randint(0, 10, (count,))


class Convolutional(Classified):
    """Three convolutions on 3x16x16 images."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        convolutions = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*convolutions, nn.Conv2d(32, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 256, 10))

    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(SAMPLES)

    def eval_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(HELD_OUT)

    def _random(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(count, 3, 16, 16), torch.randint(0, 10, (count,))
