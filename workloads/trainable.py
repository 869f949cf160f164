"""What a class has to have for the training loop to train it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.data import default_collate

from workloads.batches import Collate, Data
from workloads.contract import Split


class Trainable(Protocol):
    """The methods that the loop calls; no base class is needed.

    There may also be `test_data()`, which only confirmation reads, `collate(samples)`, which makes a batch of a
    dataset's samples, and `tokens_per_sample`, for the tokens axis.
    """

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        """A fresh model for these parameters; the loop has seeded torch."""

    def train_data(self) -> Data: ...

    def eval_data(self) -> Data: ...

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        """The mean training loss of a batch."""

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        """Metrics on `data` (tensors are on the model's device), under the same names on every split.

        Called in eval mode, without gradients, under autocast.
        """


def held_out(workload: Trainable, split: Split) -> Data:
    """The data that the objective is measured on; a workload without `test_data` has only its validation data."""
    test_data: Callable[[], Data] | None = getattr(workload, "test_data", None)
    return test_data() if split == "test" and test_data else workload.eval_data()


def collate(workload: Trainable) -> Collate:
    """What makes a batch of samples: torch's default_collate, unless the workload brings its own."""
    return getattr(workload, "collate", default_collate)


def tokens_per_sample(workload: Trainable) -> int | None:
    """How many tokens a sample has, None where the workload does not say."""
    return getattr(workload, "tokens_per_sample", None)
