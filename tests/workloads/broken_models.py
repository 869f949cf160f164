"""Workloads with one thing wrong each, and the code of the verdict that names it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from workloads.digits import prepare

ARRAYS = {name: torch.from_numpy(array) for name, array in prepare().items()}
IMAGES, LABELS = ARRAYS["train_images"], ARRAYS["train_labels"]
HELD_OUT = (ARRAYS["validation_images"], ARRAYS["validation_labels"])


class Plain:
    """What the others change: digits, two dense layers, cross entropy. Nothing is wrong with it."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def train_data(self) -> Any:
        return (IMAGES, LABELS)

    def eval_data(self) -> Any:
        return HELD_OUT

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(F.cross_entropy(model(data[0]).float(), data[1]))}


class Network(nn.Module):
    """Modules by name, put together by a function."""

    def __init__(self, join: Callable[[Any, torch.Tensor], torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.join = join
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.join(self, inputs)


def two_layers(join: Callable[[Any, torch.Tensor], torch.Tensor]) -> nn.Module:
    return Network(join, first=nn.Linear(64, 64), last=nn.Linear(64, 10))


class ZeroedInputs(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return two_layers(lambda net, x: net.last(net.first(x.flatten(1) * 0).relu()))


class EmptyImages(Plain):
    def train_data(self) -> Any:
        return (torch.zeros_like(IMAGES) + 0.3, LABELS)


class Detached(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return two_layers(lambda net, x: net.last(net.first(x.flatten(1)).relu().detach()))


class SkippedLayer(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return two_layers(lambda net, x: net.last(x.flatten(1)))


class DeadUnits(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = super().model(config)
        with torch.no_grad():
            model.get_parameter("1.bias").sub_(100)
        return model


class Fading(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        deep = [layer for _ in range(24) for layer in (nn.Linear(64, 64), nn.Sigmoid())]
        return nn.Sequential(nn.Flatten(), *deep, nn.Linear(64, 10))


class HiddenLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, 64), nn.Linear(64, 64)]
        self.last = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x).relu()
        logits: torch.Tensor = self.last(x)
        return logits


class InAList(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return HiddenLayers()


class SoftmaxTwice(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(super().model(config), nn.Softmax(1))


class Loud(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = super().model(config)
        with torch.no_grad():
            model.get_parameter("3.weight").mul_(100)
        return model


class Summed(Plain):
    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


class ShuffledApart(Plain):
    def train_data(self) -> Any:
        return (IMAGES, LABELS[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))])


class InOrder:
    """A dataset that takes no notice of the index."""

    def __init__(self) -> None:
        self.next = 0

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int, /) -> Any:
        self.next = (self.next + 1) % len(IMAGES)
        return IMAGES[self.next], LABELS[self.next]


class NoShuffling(Plain):
    def train_data(self) -> Any:
        return InOrder()


class RawEvaluation(Plain):
    def eval_data(self) -> Any:
        return (HELD_OUT[0] * 16, HELD_OUT[1])


class MirroredEvaluation(Plain):
    def eval_data(self) -> Any:
        return (HELD_OUT[0].flip(2).flip(3), HELD_OUT[1])


class RandomEvaluation(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        model.train()
        return super().evaluate(model, data)


class SlowSamples:
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int, /) -> Any:
        time.sleep(0.0003)
        return IMAGES[index], LABELS[index]


class LateData(Plain):
    def train_data(self) -> Any:
        return SlowSamples()


class TinyLoss(Plain):
    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return super().loss(model, batch) * 1e-6


class HolesInData(Plain):
    def train_data(self) -> Any:
        images = IMAGES.clone()
        images[::3] = torch.nan
        return (images, LABELS)


class Scales(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = Network(
            lambda net, x: net.last((net.first(x) * net.gamma).relu().flatten(1)),
            first=nn.Conv2d(1, 8, 3),
            last=nn.Linear(288, 10),
        )
        model.gamma = nn.Parameter(torch.ones(1, 8, 1, 1))
        return model


TEXT = Path(random.__file__).read_text(encoding="utf-8")[:12000]
LETTERS = sorted(set(TEXT))


class Lowering:
    """A tokenizer of characters that loses capitals."""

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[i].lower() for i in ids)


class LossyTokens(Plain):
    tokenizer = Lowering()

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Embedding(len(LETTERS), 16), nn.Linear(16, len(LETTERS)))

    def train_data(self) -> Any:
        return (torch.tensor([LETTERS.index(letter) for letter in TEXT]).unfold(0, 33, 16),)

    def eval_data(self) -> Any:
        return self.train_data()

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.cross_entropy(model(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class OtherMetric(Plain):
    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"accuracy": float((model(data[0]).argmax(1) == data[1]).float().mean())}


class InfiniteEvaluation(Plain):
    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": super().evaluate(model, data)["val_loss"] + float("nan")}


class OneSample(Plain):
    def train_data(self) -> Any:
        return (IMAGES[:1], LABELS[:1])


BROKEN: Sequence[tuple[type[Plain], str, Mapping[str, Any]]] = (
    (ZeroedInputs, "data_ignored", {}),
    (EmptyImages, "data_ignored", {}),
    (Detached, "no_gradient", {}),
    (SkippedLayer, "no_gradient", {}),
    (DeadUnits, "dead_layer", {}),
    (Fading, "vanishing_gradient", {}),
    (InAList, "missing_from_optimizer", {}),
    (SoftmaxTwice, "loss_arguments", {}),
    (Loud, "initial_loss", {}),
    (Summed, "loss_is_a_sum", {}),
    (ShuffledApart, "labels_unrelated", {}),
    (NoShuffling, "shuffling_broken", {}),
    (RawEvaluation, "preprocessed_differently", {}),
    (MirroredEvaluation, "preprocessed_differently", {}),
    (RandomEvaluation, "evaluation_random", {}),
    (LateData, "data_wait", {}),
    (TinyLoss, "underflow", {"precision": "fp16", "loss_scale": 1.0}),
    (HolesInData, "data_not_finite", {}),
    (Scales, "decay_on_norms", {}),
    (LossyTokens, "tokenizer", {}),
    (OtherMetric, "no_metric", {}),
    (InfiniteEvaluation, "evaluation_not_finite", {}),
    (OneSample, "one_sample", {}),
    (Plain, "learning_rate_too_high", {"lr": 1.0}),
    (Plain, "diverges", {"lr": 300.0, "optimizer": "sgd", "grad_clip": None}),
    (Plain, "learning_rate_too_low", {"lr": 1e-8}),
    (Plain, "clipping", {"grad_clip": 1e-3, "optimizer": "sgd", "lr": 0.1}),
)
