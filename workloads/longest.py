"""A workload that trains on its longest samples only: what a run may meet at any step, met at each."""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from workloads.batches import Data, Samples
from workloads.trainable import Trainable, collate, held_out, tokens_per_sample

LOOK_S = 10.0  # how long to look for long samples


class AtLongest:
    """`workload` on its `count` longest samples; tensors of equal rows have no longer ones and stay as they are."""

    def __init__(self, workload: Trainable, count: int) -> None:
        self._workload = workload
        self._count = count
        self.tokens_per_sample = tokens_per_sample(workload)
        self.loss, self.evaluate = workload.loss, workload.evaluate
        self.collate = collate(workload)

    def train_data(self) -> Data:
        data = self._workload.train_data()
        return data if isinstance(data, tuple | torch.Tensor) else Longest(data, self._count)

    def eval_data(self) -> Data:
        return self._workload.eval_data()

    def test_data(self) -> Data:
        return held_out(self._workload, "test")

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return self._workload.model(config)


class Longest:
    """The `count` longest of the samples that can be looked at in `LOOK_S` seconds."""

    def __init__(self, data: Samples, count: int) -> None:
        deadline = time.monotonic() + LOOK_S
        sizes: dict[int, int] = {}
        for index in range(len(data)):
            sizes[index] = size_of(data[index])
            if time.monotonic() > deadline:
                break
        self._data = data
        self._indices = heapq.nlargest(count, sizes, key=lambda index: (sizes[index], -index))

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int, /) -> Any:
        return self._data[self._indices[index]]


def size_of(sample: Any) -> int:
    """Bytes of a sample's tensors, arrays and texts, whatever holds them."""
    if isinstance(sample, torch.Tensor):
        return sample.nbytes
    if isinstance(sample, Mapping):
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, tuple | list):
        return sum(size_of(value) for value in sample)
    if isinstance(sample, str | bytes):
        return len(sample)
    return int(getattr(sample, "nbytes", 0)) or sys.getsizeof(sample)
