"""Activation checkpointing: a model's blocks keep only their input and compute the rest again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174). The numbers stay the same, random
draws included; a step takes about a third longer. It saves nothing of weights, the optimizer's state and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


def checkpoint_blocks(model: nn.Module) -> int:
    """Let the blocks of `model` be computed again; how many there are.

    A model that has `gradient_checkpointing_enable()`, as Hugging Face's have, is asked to do it itself.
    """
    enable: Callable[[], Any] | None = getattr(model, "gradient_checkpointing_enable", None)
    if callable(enable):
        enable()
        return 1
    found = blocks(model)
    for block in found:
        # By class and not by a wrapper: names of parameters and copies of the model stay as they are.
        block.__class__ = _checkpointed(type(block))
    return len(found)


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """What can be computed again piece by piece: modules that repeat, else what lists and sequences are made of.

    One with batch normalisation is left out: computed twice, it would count each batch twice.
    """
    found = list(_repeated(model)) or list(_parts(model))
    return [block for block in found if not any(_counts_batches(part) for part in block.modules())]


def _repeated(module: nn.Module) -> Iterator[nn.Module]:
    """The parts of the outermost lists and sequences that have two of one kind, each with parts of its own."""
    composed = [part for part in module.children() if any(True for _ in part.children())]
    kinds = {type(part) for part in composed}
    if isinstance(module, nn.Sequential | nn.ModuleList) and len(composed) > len(kinds):
        yield from composed
    else:
        for part in module.children():
            yield from _repeated(part)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """The composed parts of the outermost sequences; a sequence of single layers as a whole."""
    composed = [part for part in module.children() if any(True for _ in part.children())]
    if isinstance(module, nn.Sequential) and composed:
        yield from composed
    elif isinstance(module, nn.Sequential):
        yield module
    else:
        for part in composed:
            yield from _parts(part)


def _counts_batches(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm) and module.track_running_stats


class _Checkpointed:
    """Comes before a block's own class."""

    training: bool

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()):
            return forward(*args, **kwargs)
        is_imagined = detect_fake_mode(args) is not None  # then there is no state of random numbers to keep
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=not is_imagined, **kwargs)


def _checkpointed(kind: type) -> type:
    return type(kind.__name__, (_Checkpointed, kind), {})
