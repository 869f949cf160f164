"""Architectures and faults of other kinds than those that the diagnosis was made with, and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.broken_models import HELD_OUT, IMAGES, LABELS, Network, Plain
from tests.workloads.healthy_models import Regression


class Rows(nn.Module):
    """A recurrent network over the rows of an image."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.over_rows = nn.GRU(8, 32, batch_first=batch_first)
        self.last = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.over_rows(images.squeeze(1))[0][:, -1])
        return found


class BatchForTime(Plain):
    """The network takes the batch for the time: a sample sees those before it."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return Rows(batch_first=False)


class Autoencoder(Regression):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        encode = (nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 12))
        return nn.Sequential(*encode, nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 64))

    def train_data(self) -> Any:
        return (IMAGES,)

    def eval_data(self) -> Any:
        return (HELD_OUT[0],)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[0].flatten(1))


class RoundedCode(Autoencoder):
    """Rounding lets no gradient through to the encoder."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        parts = {"encode": nn.Linear(64, 16), "decode": nn.Linear(16, 64)}
        return Network(lambda net, x: net.decode(net.encode(x.flatten(1)).round()), **parts)


_made = torch.Generator().manual_seed(0)
_USERS, _ITEMS = torch.randn(200, 4, generator=_made), torch.randn(100, 4, generator=_made)
_WHO, _WHAT = torch.randint(200, (4000,), generator=_made), torch.randint(100, (4000,), generator=_made)
_LIKES = ((_USERS[_WHO] * _ITEMS[_WHAT]).sum(1) + 0.5 * torch.randn(4000, generator=_made) > 0).float()


class Bags(nn.Module):
    """A user is the bag of what they have seen; a product says whether they like an item."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.EmbeddingBag(200, 8, mode="mean"), nn.Embedding(100, 8)
        self.bias = nn.Parameter(torch.zeros(()))
        for each in (self.user, self.item):
            nn.init.normal_(each.weight, std=0.1)

    def forward(self, who: torch.Tensor, what: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = (self.user(who[:, None]) * self.item(what)).sum(1) + self.bias
        return found


class Recommender(Regression):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return Bags()

    def train_data(self) -> Any:
        return (_WHO[:3500], _WHAT[:3500], _LIKES[:3500])

    def eval_data(self) -> Any:
        return (_WHO[3500:], _WHAT[3500:], _LIKES[3500:])

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0], batch[1]), batch[2])


class Siamese(Plain):
    """Are two digits the same one? One network looks at both, and their distance says it."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    @staticmethod
    def pairs(images: torch.Tensor, labels: torch.Tensor) -> Any:
        made = torch.Generator().manual_seed(0)
        left, right = (torch.randint(len(images), (2000,), generator=made) for _ in range(2))
        order = labels.argsort()
        right[:900] = order[(labels[left[:900]].float() * len(labels) / 10).long()]
        return images[left], images[right], (labels[left] == labels[right]).float()

    def train_data(self) -> Any:
        return self.pairs(IMAGES, LABELS)

    def eval_data(self) -> Any:
        return self.pairs(*HELD_OUT)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        apart = (model(batch[0]) - model(batch[1])).square().sum(1).add(1e-6).sqrt()
        loss: torch.Tensor = (batch[2] * apart**2 + (1 - batch[2]) * (1 - apart).clamp(min=0) ** 2).mean()
        return loss

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class Experts(nn.Module):
    """Of four experts each sample asks one; nothing sees to it that all of them are asked."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(64, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)) for _ in range(4))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        flat = images.flatten(1)
        shares = self.gate(flat).softmax(1)
        chosen = shares.argmax(1)
        asked = torch.stack([expert(flat) for expert in self.experts], 1)
        rows = torch.arange(len(flat))
        found: torch.Tensor = asked[rows, chosen] * shares[rows, chosen, None] * 4
        return found


class Mixture(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return Experts()


class Uncertain(Regression):
    """Predicts a mean and a variance: the loss may fall below 0."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        mean, log_variance = model(batch[0]).unbind(1)
        return F.gaussian_nll_loss(mean, batch[1], log_variance.exp())


class SignFlipped(Plain):
    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return -F.cross_entropy(model(batch[0]), batch[1])


class WrongAxis(Plain):
    """The softmax is over the batch."""

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.nll_loss(F.log_softmax(model(batch[0]), 0), batch[1])


class StaleStatistics(Plain):
    """The norm's running statistics never move, so evaluation normalises by those of a fresh model."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        first = (nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64, momentum=0.0), nn.ReLU())
        return nn.Sequential(*first, nn.Linear(64, 10))

    def train_data(self) -> Any:
        return (20 * IMAGES + 30, LABELS)

    def eval_data(self) -> Any:
        return (20 * HELD_OUT[0] + 30, HELD_OUT[1])


class ConstantMetric(Plain):
    """It is measured with another model than the one that is trained."""

    kept = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return super().evaluate(self.kept, data)


class UnscaledTargets(Regression):
    def train_data(self) -> Any:
        rows, targets = super().train_data()
        return rows, 1e4 * targets

    def eval_data(self) -> Any:
        rows, targets = super().eval_data()
        return rows, 1e4 * targets


class Faint(Regression):
    """Normal targets, of which the inputs tell a tenth: what is learnt is soon lost in what is learnt by heart."""

    told, count = 0.1, 2000

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))

    def train_data(self) -> Any:
        return self._drawn(1, self.count)

    def eval_data(self) -> Any:
        return self._drawn(2, 400)

    def _drawn(self, seed: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(count, 20, generator=generator)
        told = inputs.sum(dim=1, keepdim=True) / math.sqrt(20)
        noise = torch.randn(count, 1, generator=generator)
        return inputs, math.sqrt(self.told) * told + math.sqrt(1 - self.told) * noise


class FaintAndFew(Faint):
    told, count = 0.25, 300


class Noise(Faint):
    told = 0.0


class Drowned(Plain):
    """Dropout of nearly everything."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.99), nn.Linear(64, 10))


MORE_HEALTHY: Sequence[tuple[type[Plain], Mapping[str, Any]]] = (
    (Autoencoder, {}),
    (Faint, {}),
    (FaintAndFew, {}),
    (Recommender, {"lr": 0.01}),
    (Siamese, {}),
    (Uncertain, {"lr": 3e-3}),
)
MORE_BROKEN: Sequence[tuple[type[Plain], str, Mapping[str, Any]]] = (
    (Mixture, "zero_gradient", {}),
    (RoundedCode, "zero_gradient", {}),
    (UnscaledTargets, "cannot_overfit", {}),
    (SignFlipped, "loss_sign", {}),
    (WrongAxis, "initial_loss", {}),
    (StaleStatistics, "running_statistics", {}),
    (ConstantMetric, "metric_constant", {}),
    (Drowned, "dropout", {}),
    (Noise, "labels_unrelated", {}),
)
