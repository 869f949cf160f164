"""Workloads of many kinds with which nothing is wrong, however unusual they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.broken_models import HELD_OUT, IMAGES, LABELS, LETTERS, TEXT, Plain

NUMBERS = torch.randn(600, 8, generator=torch.Generator().manual_seed(0))
TARGETS = NUMBERS[:, :3].sum(1) + 0.3 * NUMBERS[:, 4] * NUMBERS[:, 5]


class Logistic(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Convolutions(Plain):
    """A bias before a norm has no gradient, and there are running statistics."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        first = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        return nn.Sequential(*first, nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))


class Regression(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1), nn.Flatten(0))

    def train_data(self) -> Any:
        return (NUMBERS[:500], TARGETS[:500] * 2 + 3)

    def eval_data(self) -> Any:
        return (NUMBERS[500:], TARGETS[500:] * 2 + 3)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class ManyLabels(Regression):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return Plain.model(self, config)

    def train_data(self) -> Any:
        return (IMAGES, F.one_hot(LABELS, 10).float())

    def eval_data(self) -> Any:
        return (HELD_OUT[0], F.one_hot(HELD_OUT[1], 10).float())

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


class Variational(Regression):
    """A loss of two parts, summed over pixels, with noise of its own."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        parts = {"encode": nn.Linear(64, 16), "decode": nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64))}
        return nn.ModuleDict(parts)

    def train_data(self) -> Any:
        return (IMAGES,)

    def eval_data(self) -> Any:
        return (HELD_OUT[0],)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        assert isinstance(model, nn.ModuleDict)
        pixels = batch[0].flatten(1)
        mean, log_variance = model["encode"](pixels).chunk(2, 1)
        drawn = model["decode"](mean + torch.randn_like(mean) * (log_variance / 2).exp())
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        drawing = F.binary_cross_entropy_with_logits(drawn, pixels, reduction="sum") / len(pixels)
        loss: torch.Tensor = drawing + divergence
        return loss

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        torch.manual_seed(0)
        return super().evaluate(model, data)


class Contrastive(Variational):
    """Two modules that are called by name, and a loss over the whole batch."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.ModuleDict({"left": nn.Linear(64, 16), "right": nn.Linear(64, 16)})

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        assert isinstance(model, nn.ModuleDict)
        pixels = batch[0].flatten(1)[:64]
        left = F.normalize(model["left"](pixels), dim=1)
        right = F.normalize(model["right"](pixels + 0.05 * torch.randn_like(pixels)), dim=1)
        return F.cross_entropy(left @ right.T / 0.1, torch.arange(len(pixels)))


class Attention(nn.Module):
    """With a key bias of its own, which has no gradient by nature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        found: torch.Tensor = F.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h), is_causal=True)
        return x + found


class OwnLoss(nn.Module):
    """A model that computes its loss itself, from its inputs alone."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), 24)
        self.blocks = nn.Sequential(Attention(24), Attention(24))
        self.last = nn.Linear(24, len(LETTERS))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.last(self.blocks(self.letters(ids[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)


class LanguageModel(Regression):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return OwnLoss()

    def train_data(self) -> Any:
        ids = torch.tensor([LETTERS.index(letter) for letter in TEXT])
        return (ids[: len(ids) * 4 // 5].unfold(0, 25, 8),)

    def eval_data(self) -> Any:
        ids = torch.tensor([LETTERS.index(letter) for letter in TEXT])
        return (ids[len(ids) * 4 // 5 :].unfold(0, 25, 8),)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0])
        return loss


class ZeroHead(Plain):
    """The last layer starts at zero: nothing gets through before the first step."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = super().model(config)
        nn.init.zeros_(model.get_parameter("3.weight"))
        return model


class FrozenBase(Plain):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = super().model(config)
        model.get_submodule("1").requires_grad_(False)
        return model


class Noisy:
    """A dataset of dictionaries, different at every access."""

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {"image": IMAGES[index] + 0.1 * torch.randn_like(IMAGES[index]), "label": int(LABELS[index])}


class Augmented(Plain):
    """Its loss takes out of a batch what it needs."""

    def train_data(self) -> Any:
        return Noisy()

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.cross_entropy(model(batch.pop("image")), batch.pop("label"))


class Hinge(Plain):
    """A loss of which the checks know nothing."""

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.multi_margin_loss(model(batch[0]), batch[1])


class Few(Plain):
    def train_data(self) -> Any:
        return (IMAGES[:60], LABELS[:60])


class FewDictionaries(Plain):
    """So few unseen samples that with the inputs of others they are sometimes told, and sometimes not."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Linear(8, 2)

    def train_data(self) -> Any:
        made = torch.Generator().manual_seed(0)
        rows = torch.randn(100, 8, generator=made)
        return [{"row": row, "is_positive": (row[0] > 0).long()} for row in rows]

    def eval_data(self) -> Any:
        return self.train_data()

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return F.cross_entropy(model(batch["row"]), batch["is_positive"])

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        batch = {name: torch.stack([sample[name] for sample in data]) for name in ("row", "is_positive")}
        return {"val_loss": float(self.loss(model, batch))}


class Rare(Plain):
    """One class in ten."""

    def train_data(self) -> Any:
        return (IMAGES, (LABELS == 3).long())

    def eval_data(self) -> Any:
        return (HELD_OUT[0], (HELD_OUT[1] == 3).long())


HEALTHY: Sequence[tuple[type[Plain], Mapping[str, Any]]] = (
    (Plain, {}),
    (Plain, {"optimizer": "lamb", "lr": 0.01}),
    (Plain, {"optimizer": "adafactor", "lr": 0.01}),
    (Plain, {"optimizer": "sgd", "lr": 0.05}),
    (Plain, {"precision": "fp16"}),
    (Plain, {"precision": "bf16", "batch_size": 256}),
    (Plain, {"grad_clip": {"relative": 1.0}}),
    (Logistic, {"optimizer": "sgd", "lr": 0.1}),
    (Convolutions, {}),
    (Regression, {"lr": 3e-3}),
    (ManyLabels, {}),
    (Variational, {}),
    (Contrastive, {}),
    (LanguageModel, {"lr": 3e-3, "batch_size": 16}),
    (ZeroHead, {}),
    (FrozenBase, {}),
    (Augmented, {}),
    (Hinge, {"lr": 0.01}),
    (Few, {"batch_size": 8}),
    (FewDictionaries, {"batch_size": 32}),
    (Rare, {}),
)
