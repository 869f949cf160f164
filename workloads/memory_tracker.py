"""The peak of tensor memory that a piece of torch code needs, followed operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)


class MemoryTracker(TorchDispatchMode):
    """Bytes of all storages that operations have made and that somebody still holds: now, and at most.

    Follows each storage by a weak reference, so that views count once and what is freed counts no more. Storages that
    were there before count nothing. Works on real and on fake tensors; `reads_as_one` answers each read of a value
    (`float(loss)`) with 1, because a fake tensor has none; 1 is a loss, a norm and a count of steps that code can go on
    with.

    Not seen: what a kernel allocates and frees inside itself, and memory that is not a tensor's.
    """

    def __init__(self, *, reads_as_one: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.bytes = 0
        self.peak_bytes = 0
        self._reads_as_one = reads_as_one
        self._held: dict[weakref.ref[torch.UntypedStorage], int] = {}

    def take_peak(self) -> int:
        """The peak since the last call; what is held now starts the next one."""
        peak, self.peak_bytes = self.peak_bytes, self.bytes
        return peak

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._reads_as_one and func in _READS:
            return one_of(args[0].dtype)
        result = self._taken_apart(func, args, kwargs or {})
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._follow(leaf.untyped_storage())
        return result

    def _taken_apart(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """In inference mode an operation that is made of others arrives whole, and would hide what they allocate."""
        if not torch.is_inference_mode_enabled() or func.namespace == "prim":
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)

    def _follow(self, storage: torch.UntypedStorage) -> None:
        reference = weakref.ref(storage, self._forget)
        size = storage.nbytes()
        self.bytes += size - self._held.get(reference, 0)
        self._held[reference] = size
        self.peak_bytes = max(self.peak_bytes, self.bytes)

    def _forget(self, reference: weakref.ref[torch.UntypedStorage]) -> None:
        self.bytes -= self._held.pop(reference, 0)


def one_of(dtype: torch.dtype) -> bool | int | float | complex:
    """1 as `Tensor.item` returns it; False of a truth, which is most often asked of what is wrong."""
    if dtype == torch.bool:
        return False
    if dtype.is_complex:
        return 1 + 0j
    return 1.0 if dtype.is_floating_point else 1
