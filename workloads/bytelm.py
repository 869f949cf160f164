"""byte-lm: a small transformer that predicts the next byte of the Python standard library's source.

Axes: B batch, T position, C channel, H head, V byte value.
"""
# ruff: noqa: N803, N806 - the axes are part of a tensor's name

from __future__ import annotations

import random
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from workloads.batches import Data
from workloads.data import SPLIT_SEED, Array, Arrays, DataUnavailable, cached, fingerprint
from workloads.training import TrainingWorkload

TOKENS_PER_SAMPLE = 64
VOCABULARY = 256
TRAIN_SAMPLES = 16384
HELD_OUT_SAMPLES = 128
MIN_FILES = 20
WIDTH, HEADS, BLOCKS = 64, 4, 1


def prepare() -> Arrays:
    """`train` (TRAIN_SAMPLES, T + 1), `validation` and `test` (HELD_OUT_SAMPLES, T + 1), uint8.

    Split by file, so that no file is in two of them. The corpus is that of the running Python: figures are to be
    compared under one Python version only.
    """
    files = source_files()
    listing = "\n".join(f"{path.name} {path.stat().st_size}" for path in files)
    return cached("bytelm", fingerprint("1", listing), lambda: _build(files))


def source_files() -> list[Path]:
    """The modules at the top of the standard library, sorted by name."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    if len(files) < MIN_FILES:
        raise DataUnavailable("this Python has no source of its standard library, which byte-lm trains on")
    return files


def split_files(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Disjoint files: 80 % train, 10 % validation, 10 % test; a fixed shuffle."""
    shuffled = sorted(files, key=lambda path: path.name)
    random.Random(SPLIT_SEED).shuffle(shuffled)
    first, second = int(0.8 * len(files)), int(0.9 * len(files))
    return {"train": shuffled[:first], "validation": shuffled[first:second], "test": shuffled[second:]}


def _build(files: Sequence[Path]) -> Arrays:
    counts = {"train": TRAIN_SAMPLES, "validation": HELD_OUT_SAMPLES, "test": HELD_OUT_SAMPLES}
    return {split: _windows(paths, counts[split]) for split, paths in split_files(files).items()}


def _windows(paths: Sequence[Path], count: int) -> Array:
    """`count` windows evenly spread over the files' bytes; they overlap where there is too little text."""
    text = np.frombuffer(b"\n".join(path.read_bytes() for path in paths), dtype=np.uint8)
    starts = np.linspace(0, len(text) - TOKENS_PER_SAMPLE - 1, count).astype(np.int64)
    windows: Array = text[starts[:, None] + np.arange(TOKENS_PER_SAMPLE + 1)]
    return windows


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to the residual stream."""

    def __init__(self, width: int, heads: int, attention_dropout: float, dropout: float) -> None:
        super().__init__()
        self.heads, self.attention_dropout = heads, attention_dropout
        self.norm_attention, self.norm_feed_forward = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        batch, time, width = x_BTC.shape
        joint = self.query_key_value(self.norm_attention(x_BTC))
        q, k, v = joint.view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)  # each BHTC
        dropout_p = self.attention_dropout if self.training else 0.0
        mixed_BHTC = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
        x_BTC = x_BTC + self.project(mixed_BHTC.transpose(1, 2).reshape(batch, time, width))
        output: torch.Tensor = x_BTC + self.feed_forward(self.norm_feed_forward(x_BTC))
        return output


class ByteModel(nn.Module):
    """A decoder-only transformer over bytes; the output layer shares the embedding's weights."""

    def __init__(self, attention_dropout: float, dropout: float, label_smoothing: float) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.place = nn.Parameter(torch.zeros(TOKENS_PER_SAMPLE, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, attention_dropout, dropout) for _ in range(BLOCKS)))
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.place, std=0.02)

    def forward(self, bytes_BT: torch.Tensor) -> torch.Tensor:
        x_BTC = self.embedding(bytes_BT) + self.place[: bytes_BT.shape[1]]
        return F.linear(self.norm(self.blocks(x_BTC)), self.embedding.weight)


class ByteLM(TrainingWorkload):
    """Losses are in nats per byte; `val_bits_per_byte` is the same in bits."""

    tokens_per_sample = TOKENS_PER_SAMPLE

    def __init__(self) -> None:
        self._data = {split: (torch.from_numpy(windows),) for split, windows in prepare().items()}

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        attention_dropout, dropout = float(config.get("attention_dropout", 0.0)), float(config.get("dropout", 0.0))
        return ByteModel(attention_dropout, dropout, float(config.get("label_smoothing", 0.0)))

    def train_data(self) -> Data:
        return self._data["train"]

    def eval_data(self) -> Data:
        return self._data["validation"]

    def test_data(self) -> Data:
        return self._data["test"]

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return _cross_entropy(model, batch[0], float(getattr(model, "label_smoothing", 0.0)))

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        parts = [(len(part), float(_cross_entropy(model, part, 0.0))) for part in data[0].split(64)]
        loss = sum(count * value for count, value in parts) / sum(count for count, _ in parts)
        return {"val_loss": loss, "val_bits_per_byte": loss / float(np.log(2))}


def _cross_entropy(model: nn.Module, windows: torch.Tensor, label_smoothing: float) -> torch.Tensor:
    windows_BT = windows.long()
    logits_BTV = model(windows_BT[:, :-1])
    targets = windows_BT[:, 1:].reshape(-1)
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets, label_smoothing=label_smoothing)
