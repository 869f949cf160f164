"""A model's buffers, which a forward pass may write to, replace, or make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import nn

Layout: TypeAlias = tuple[torch.Size, torch.dtype]


def layout(tensor: torch.Tensor) -> Layout:
    """What two tensors have in common that can be copied into one another element by element."""
    return tensor.shape, tensor.dtype


def layouts(model: nn.Module) -> dict[str, Layout]:
    """Of all buffers, by name."""
    return {name: layout(buffer) for name, buffer in model.named_buffers()}


def put_buffers(model: nn.Module, buffers: Mapping[str, torch.Tensor]) -> None:
    """Put tensors in the places of these buffers, on the device of the model, whether there is one there or not."""
    device = next(model.parameters()).device
    for name, buffer in buffers.items():
        owner, _, own_name = name.rpartition(".")
        model.get_submodule(owner)._buffers[own_name] = buffer.to(device)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Afterwards every buffer holds what it held, and is the same tensor: some models put a new one in its place."""
    parts = [part for part in model.modules() if not isinstance(part, torch.jit.ScriptModule)]  # these write in place
    owned = [(part, dict(part._buffers)) for part in parts]
    contents = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for part, own in owned:
            part._buffers.update(own)
        with torch.no_grad():
            for buffer, content in contents:
                buffer.copy_(content)
