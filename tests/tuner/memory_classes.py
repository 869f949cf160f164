"""Classes whose memory runs out only at one place, 48 MiB at a time; copied into a user's folder by the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

SPIKE = 12 << 20  # float32: 48 MiB


class Small:
    """Trains in next to no memory."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        self.steps = 0
        return nn.Linear(4, 1)

    def train_data(self) -> Any:
        return torch.zeros(64, 4), torch.zeros(64, 1)

    def eval_data(self) -> Any:
        return torch.zeros(8, 4), torch.zeros(8, 1)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        error: torch.Tensor = model(batch[0]) - batch[1]
        return error.square().mean()

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class SecondStep(Small):
    """Keeps from its first step what is too much together with that of the second."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training:
            self.steps += 1
            if self.steps == 3:  # two micro-batches a step
                torch.ones(SPIKE)
        return super().loss(model, batch)


class InEvaluation(Small):
    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        torch.ones(SPIKE)
        return super().evaluate(model, data)


class Texts:
    """64 samples; one of them is long."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> str:
        return "x" * (6000 if index == 41 else 10)


class LongestSample(Small):
    """What a step takes grows with the square of its longest text: 48 MiB or so for the one long sample."""

    def train_data(self) -> Any:
        return Texts()

    def collate(self, samples: list[str]) -> torch.Tensor:
        return pad_sequence([torch.zeros(len(sample)) for sample in samples], batch_first=True)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        attention = batch[0][:, None] * batch[0][None, :] / 2 if batch.ndim == 2 else batch.sum()
        error: torch.Tensor = model(torch.ones(1, 4)) + attention.sum()
        return error.square().mean()

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"val_loss": float(super().loss(model, data))}


class InTest(Small):
    """Only the test data are large."""

    def test_data(self) -> Any:
        return torch.zeros(SPIKE // 4, 4), torch.zeros(SPIKE // 4, 1)


class Leaking(Small):
    """Keeps 256 KiB of every step for ever."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        self.kept: list[torch.Tensor] = []
        return super().model(config)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training:
            self.kept.append(torch.ones(1 << 16))
        return super().loss(model, batch)


class LeakingNumbers(Small):
    """Keeps objects of Python."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        self.log: list[list[float]] = []
        return super().model(config)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        if model.training:
            self.log.append([float(number) for number in range(1000, 5000)])
        return super().loss(model, batch)


class Deep(Small):
    """Sixteen blocks of which each keeps 6 MiB of activations, however small the batch."""

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        blocks = [nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16)) for _ in range(16)]
        return nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Linear(1, 16), *blocks, nn.Linear(16, 1), nn.Flatten())

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        many = batch[0][:1].repeat(1536, 1) if model.training else batch[0]
        loss: torch.Tensor = model(many).square().mean()
        return loss


class Greedy(nn.Linear):
    """Makes what is too much when its state is put back."""

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        torch.ones(SPIKE)
        return super().load_state_dict(*args, **kwargs)


class InResuming(Small):
    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Greedy(4, 1)
