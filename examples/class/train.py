"""The spirals of `examples/script` as a class: model, data and loss are ours, the training loop is x5tune's.

That loop brings mixed precision, loss scale, accumulation, warm-up and cosine, clip, weight decay on matrices alone,
and several processes where the job asks for them.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def spirals(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 2, (count,), generator=made)
    angle = torch.rand(count, generator=made) * 3 * math.pi
    turned = angle + label * math.pi
    points = torch.stack((turned.cos(), turned.sin()), 1) * (angle / math.pi).unsqueeze(1)
    return points + 0.1 * torch.randn(count, 2, generator=made), label


class Spirals:
    parameters = {  # what our model takes, in the notation of `search`; those of the loop are there anyway
        "width": {"low": 16, "high": 128, "log": True, "int": True},
        "dropout": 0.0,
    }

    def __init__(self) -> None:
        """Once for all trials, so this is the place to load data."""
        self.train, self.held, self.untouched = spirals(2000, seed=1), spirals(500, seed=2), spirals(500, seed=3)

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        width = config["width"]
        return nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Dropout(config["dropout"]),
            nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2),
        )  # fmt: skip

    def train_data(self) -> tuple[torch.Tensor, ...]:
        return self.train

    def eval_data(self) -> tuple[torch.Tensor, ...]:
        return self.held

    def test_data(self) -> tuple[torch.Tensor, ...]:
        return self.untouched  # confirmation alone reads it

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs), labels)

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, Any]:
        inputs, labels = data
        logits = model(inputs)
        accuracy = (logits.argmax(1) == labels).float().mean()
        return {"val_loss": nn.functional.cross_entropy(logits, labels), "val_accuracy": accuracy}
