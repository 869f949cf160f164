"""Activation checkpointing: a model's blocks keep only their input and compute the rest again in the backward pass.

Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174). The numbers stay the same, random
draws included; a step takes about a third longer. It saves nothing of weights, the optimizer's state and evaluation.

A block that changes something in passing (running statistics, a counter, a list that it is given, its own input,
Python's random numbers) would change it twice, so it is left as it is. Its first training forward pass is made once
more to find out. Not seen: what it changes beyond that, as in a global, or inside an object that it holds. What
`torch.compile` has taken is left too: compiled together with our check it draws other random numbers.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch._guards import detect_fake_mode
from torch.utils.checkpoint import checkpoint

from workloads.buffers import kept_buffers


def checkpoint_blocks(model: nn.Module) -> int:
    """Let the blocks of `model` be computed again; how many there are.

    A model that has `gradient_checkpointing_enable()`, as Hugging Face's have, is asked to do it itself; some of them
    answer with a ValueError that they cannot.
    """
    enable: Callable[..., Any] | None = getattr(model, "gradient_checkpointing_enable", None)
    if callable(enable):
        with contextlib.suppress(ValueError):
            enable(**_not_reentrant(enable))
            return 1
    compiled = set(_compiled(model))
    changed = 0
    for block in blocks(model):
        if block in compiled:
            continue
        with contextlib.suppress(TypeError):  # a class that cannot have another one before it
            # By class and not by a wrapper: names of parameters and copies of the model stay as they are.
            object.__setattr__(block, "__class__", _checkpointed(type(block)))  # type: ignore[arg-type]
            changed += 1
    return changed


def _compiled(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that are compiled, as a whole or as a part of another."""
    for module in model.modules():
        if module._compiled_call_impl is not None:  # by module.compile()
            yield from module.modules()
        elif isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):  # by torch.compile(module)
            yield from inner.modules()


def _not_reentrant(enable: Callable[..., Any]) -> dict[str, Any]:
    """Asks for the implementation that can be differentiated by `torch.autograd.grad`, where that can be asked for."""
    name = "gradient_checkpointing_kwargs"
    return {name: {"use_reentrant": False}} if name in inspect.signature(enable).parameters else {}


def blocks(model: nn.Module) -> Sequence[nn.Module]:
    """What can be computed again piece by piece: modules that repeat, else what lists and sequences are made of."""
    found = list(_repeated(model)) or list(_parts(model))
    return list({id(block): block for block in found}.values())  # one may be in more than one list


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


class _Checkpointed:
    """Comes before a block's own class."""

    training: bool
    _is_left_alone: bool | None = None
    """Whether it is computed once all the same; None before the first training forward pass."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Not the block's own: this is no kind of block that its author has made."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]
        if not (self.training and torch.is_grad_enabled()) or self._is_left_alone:
            return forward(*args, **kwargs)
        if self._is_left_alone is None:
            assert isinstance(self, nn.Module)
            self._is_left_alone = _changes_something(self, forward, args, kwargs)
            return self.forward(*args, **kwargs)
        is_imagined = detect_fake_mode((args, kwargs)) is not None  # then there are no random numbers to keep
        return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=not is_imagined, **kwargs)


@functools.cache
def _checkpointed(kind: type) -> type:
    return type(kind.__name__, (_Checkpointed, kind), {})


@torch._disable_dynamo  # type: ignore[attr-defined]  # which is loaded when this is called, not before
def _changes_something(
    block: nn.Module, forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a forward pass does, besides giving a result; afterwards all is as before."""
    given = _copied([*args, kwargs])
    plain = [(part, _plain(part)) for part in block.modules()]
    python, before = random.getstate(), _state(block, given)
    is_imagined = detect_fake_mode((args, kwargs)) is not None
    devices = {tensor.device for tensor in (*block.parameters(), *block.buffers()) if tensor.is_cuda}
    with kept_buffers(block), contextlib.nullcontext() if is_imagined else torch.random.fork_rng(devices):
        forward(*given[:-1], **given[-1])
        has_changed = _state(block, given) != before
    random.setstate(python)
    for part, values in plain:
        vars(part).update(values)
    return has_changed


def _state(block: nn.Module, given: object) -> list[object]:
    """What can be compared of all that a forward pass may change."""
    buffers = [_shape(buffer) for buffer in block.buffers()]
    return [buffers, [_plain(part) for part in block.modules()], _shape(given), random.getstate()]


def _plain(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if isinstance(value, int | float | str)}


def _copied(value: Any) -> Any:
    """Containers and tensors of their own."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(item) for item in value)
    return {key: _copied(item) for key, item in value.items()} if type(value) is dict else value


def _shape(value: Any) -> object:
    """What is in containers, and how often each tensor was written to."""
    if isinstance(value, torch.Tensor):
        return id(value), None if value.is_inference() else value._version  # one of an evaluation has none
    if type(value) in (list, tuple):
        return [_shape(item) for item in value]
    return {key: _shape(item) for key, item in value.items()} if type(value) is dict else id(value)
