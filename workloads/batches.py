"""Data that can be indexed, and the order in which a seed sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch.utils.data import default_collate


class Samples(Protocol):
    """A map-style dataset, as torch.utils.data.Dataset: `len()` and one sample by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Data: TypeAlias = tuple[torch.Tensor, ...] | Samples
"""Tensors of equal length (a batch is a tuple of tensors), or a dataset (a batch is what collating its samples gives).
"""

Collate: TypeAlias = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples, as `collate_fn` of a torch DataLoader does."""


def length(data: Data) -> int:
    """How many samples."""
    return len(data[0]) if isinstance(data, tuple) else len(data)


def is_at_hand(data: Data) -> bool:
    """Whether the samples are tensors: a batch of them is made in no time, and nothing about it is random."""
    return isinstance(data, tuple | torch.Tensor)


def gather(data: Data, indices: torch.Tensor, collate: Collate = default_collate) -> Any:
    """The batch of these samples, where they are."""
    if isinstance(data, tuple):
        return tuple(tensor[indices] for tensor in data)
    if isinstance(data, torch.Tensor):
        return data[indices]
    return collate([data[int(i)] for i in indices])


def take(data: Data, indices: torch.Tensor, device: torch.device, collate: Collate = default_collate) -> Any:
    """The batch of these samples, on `device`."""
    return to_device(gather(data, indices, collate), device)


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors, and containers of them, moved; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(to_device(item, device) for item in value)
    return value


class Order:
    """An endless sequence of sample indices: a fresh shuffle each epoch, from seed and epoch alone.

    Where a run is in its data follows from the number of samples seen, so there is nothing else to save.
    """

    def __init__(self, count: int, seed: int) -> None:
        if count < 1:
            raise ValueError("there are no training samples")
        self._count, self._seed = count, seed
        self._epoch, self._shuffle = -1, torch.empty(0, dtype=torch.int64)

    def indices(self, first: int, count: int) -> torch.Tensor:
        """The `count` sample indices from position `first` on; a batch may span epochs."""
        parts: list[torch.Tensor] = []
        while count > 0:
            epoch, offset = divmod(first, self._count)
            part = self._epoch_order(epoch)[offset : offset + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return torch.cat(parts)

    def _epoch_order(self, epoch: int) -> torch.Tensor:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed * 1_000_003 + epoch) % 2**63)
            self._epoch, self._shuffle = epoch, torch.randperm(self._count, generator=generator)
        return self._shuffle
