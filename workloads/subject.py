"""What is diagnosed: a workload with its parameters, fresh models of it, and batches of its data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from workloads.batches import Data, Order, length, take, to_device
from workloads.contract import Parameters, ProbeConfig
from workloads.loss_watch import LossWatch, Term
from workloads.settings import Settings
from workloads.trainable import Trainable, collate, held_out

HELD_OUT_SHARE, MOST_HELD_OUT = 0.2, 512
SEED = 20


class TrainingRows:
    """Some samples of a dataset, by index: what `evaluate` can be given in the place of the evaluation data."""

    def __init__(self, data: Any, indices: torch.Tensor) -> None:
        self._data, self._indices = data, indices

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int, /) -> Any:
        if index >= len(self._indices):
            raise IndexError(index)
        return self._data[int(self._indices[index])]


@dataclass
class Subject:
    """`metric` (None where nobody has named one) and `direction` are the objective's.

    Everything random here comes from the seed of `config`.
    """

    workload: Trainable
    config: ProbeConfig
    metric: str | None
    direction: Literal["minimize", "maximize"]
    seconds: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.settings = Settings.of(self.config)
        self.device = torch.device(self.config.device)
        self.train_data = self.workload.train_data()
        self.count = length(self.train_data)
        shuffled = Order(self.count, self.config.seed + SEED).indices(0, self.count)
        held = max(1, min(MOST_HELD_OUT, int(self.count * HELD_OUT_SHARE)))
        self.held_out, self.trained = shuffled[:held], shuffled[held:] if self.count > held else shuffled
        self.evaluation_data = to_device(held_out(self.workload, "validation"), self.device)
        self.reachable: float | None = None
        """The share of the loss on unseen training samples that some training was seen to remove."""
        self._ends_at = self.clock() + self.seconds

    def time_left(self) -> float:
        return self._ends_at - self.clock()

    def model(self, *, is_training: bool = True) -> nn.Module:
        """A fresh one, always the same."""
        torch.manual_seed(self.config.seed)
        model = self.workload.model(Parameters(self.config.parameters)).to(self.device)
        return model.train(is_training)

    def rows(self, indices: torch.Tensor) -> Any:
        """The batch of these training samples."""
        return take(self.train_data, indices, self.device, collate(self.workload))

    def batch(self, number: int, size: int | None = None) -> Any:
        """The `number`th batch of the samples that are for training; they come round and round."""
        size = min(size or self.settings.micro_batch, len(self.trained))
        places = torch.arange(number * size, (number + 1) * size) % len(self.trained)
        return self.rows(self.trained[places])

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Of the batch in containers of its own: some losses take out of them what they need."""
        return self.workload.loss(model, to_device(batch, self.device))

    def look(self, model: nn.Module, batch: Any) -> tuple[float, Term | None]:
        """The loss, and its main term where it is one that torch has an operation for."""
        with LossWatch() as watch:
            loss = float(self.loss(model, batch).detach())
        return loss, watch.main

    def value(self, model: nn.Module, indices: torch.Tensor) -> float:
        """The mean over these training samples of the loss's main term where it is known, else of the loss."""
        total = 0.0
        for part in torch.split(indices, max(1, self.settings.micro_batch)):
            loss, term = self.look(model, self.rows(part))
            total += len(part) * (loss if term is None else term.value)
        return total / len(indices)

    def evaluated(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        """The metrics, as the training loop would measure them."""
        was_training = model.training
        model.eval()
        try:
            with torch.no_grad():
                return dict(self.workload.evaluate(model, data))
        finally:
            model.train(was_training)

    def training_rows(self, indices: torch.Tensor) -> Data:
        """These training samples in the form of data."""
        if isinstance(self.train_data, tuple):
            return tuple(tensor[indices].to(self.device) for tensor in self.train_data)
        if isinstance(self.train_data, torch.Tensor):
            return self.train_data[indices].to(self.device)
        return TrainingRows(self.train_data, indices)

    def with_parameters(self, **changed: Any) -> ProbeConfig:
        return replace(self.config, parameters={**self.config.parameters, **changed})


def without_dropout(model: nn.Module) -> nn.Module:
    """The model with every dropout module switched off."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model


def train_steps(  # noqa: PLR0917 - what, how and how long, in this order
    subject: Subject,
    model: nn.Module,
    lr: float,
    steps: int,
    batch: Callable[[int], Any],
    after: Callable[[int], bool] = lambda _: False,
) -> int:
    """AdamW steps at a constant rate with the norm clipped at 1; `after(step)` may end it. Returns the steps taken.

    Stops at a loss that is not finite too, and when the subject's time is over.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        loss = subject.loss(model, batch(step))
        if not bool(loss.isfinite()):
            return step
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, step / 5)
        optimizer.step()
        if after(step) or subject.time_left() <= 0:
            return step
    return steps
