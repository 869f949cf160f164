"""What `bench.gpu_check` trains: a GPT of 124 M parameters and a ResNet-50, as a user's classes; random data.

Radford et al. 2019 (GPT-2, the small one) and He et al. 2015 (arXiv 1512.03385, table 1). `Tiny…` are the same in
small, for a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention and a feed-forward network, each behind a norm and beside the residual stream x_BTC."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:  # noqa: N803 - axes
        size_B, size_T, width = x_BTC.shape  # noqa: N806
        parts = self.qkv(self.norm_1(x_BTC)).view(size_B, size_T, 3, self.heads, width // self.heads)
        q_BHTD, k_BHTD, v_BHTD = parts.permute(2, 0, 3, 1, 4)  # noqa: N806
        mixed = F.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)
        x_BTC = x_BTC + self.project(mixed.transpose(1, 2).reshape(size_B, size_T, width))  # noqa: N806
        widened: torch.Tensor = self.narrow(F.gelu(self.widen(self.norm_2(x_BTC))))
        return x_BTC + widened


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
        places = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(tokens_BT) + self.places(places))))
        return logits


class Gpt124M:
    """Twelve layers of width 768 over 1,024 of 50,304 tokens."""

    layers, width, heads, context, vocabulary = 12, 768, 12, 1024, 50304
    samples = 256

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        return Gpt(self.layers, self.width, self.heads, self.context, self.vocabulary)

    def train_data(self) -> tuple[torch.Tensor]:
        return (torch.randint(0, self.vocabulary, (self.samples, self.context + 1)),)

    def eval_data(self) -> tuple[torch.Tensor]:
        return (torch.randint(0, self.vocabulary, (4, self.context + 1)),)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        logits_BTV = model(batch[0][:, :-1])  # noqa: N806
        return F.cross_entropy(logits_BTV.flatten(0, 1), batch[0][:, 1:].flatten())

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


class TinyGpt(Gpt124M):
    layers, width, heads, context, vocabulary = 2, 64, 4, 64, 256


class Bottleneck(nn.Module):
    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.body = nn.Sequential(
            *convolution(before, middle, 1),
            nn.ReLU(),
            *convolution(middle, middle, 3, stride),
            nn.ReLU(),
            *convolution(middle, after, 1),
        )
        is_same = before == after and stride == 1
        self.short = nn.Identity() if is_same else nn.Sequential(*convolution(before, after, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.short(x))


def convolution(before: int, after: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, size, stride, size // 2, bias=False), nn.BatchNorm2d(after)


class ResNet50:
    """Images of 3x224x224, a thousand classes."""

    blocks, width, side, classes = (3, 4, 6, 3), 64, 224, 1000
    samples = 256

    def model(self, config: Mapping[str, Any]) -> nn.Module:
        parts: list[nn.Module] = [*convolution(3, self.width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        before = self.width
        for stage, count in enumerate(self.blocks):
            for index in range(count):
                parts.append(Bottleneck(before, self.width << stage, 2 if stage and not index else 1))
                before = 4 * (self.width << stage)
        return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, self.classes))

    def train_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(self.samples)

    def eval_data(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._random(8)

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, data: Any) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}

    def _random(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand(count, 3, self.side, self.side), torch.randint(0, self.classes, (count,))


class TinyResNet(ResNet50):
    blocks, width, side, classes = (1, 1, 1, 1), 8, 64, 10
