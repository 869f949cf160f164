"""How large a model's activations are and where its attention looks, measured on request on one micro-batch."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from workloads.reference import aside

MOST = 200
"""Layers, and calls of attention, that are told."""
_WITHOUT = (nn.modules.dropout._DropoutNd, torch.jit.ScriptModule)
"""What is not looked at: torch hangs no hook on a compiled script."""
ROWS = 4
"""Samples of a batch whose attention is computed once more."""


LOGITS = 1 << 24
"""Of one call of attention, how many are computed at most."""


def look(model: nn.Module, forward: Callable[[], object]) -> dict[str, Any]:
    """What `forward`, a training forward pass, does in the model; leaves no trace in it, nor in torch's generators.

    `layers`, by name: `rms` of the output; where some of it is zero, `zeros`, their share, and `dead`, the share of
    units (of the last axis, or of the channels of images) that are zero on the whole batch; no dropout. `attention`,
    one for each call of torch's scaled_dot_product_attention: `entropy`, mean over queries, 1 where all visible keys
    count the same and 0 where one of them takes all, and `max_logit`. A number that is not finite is None.
    """
    layers: dict[str, dict[str, float | None]] = {}
    attention = _Attention()
    with ExitStack() as stack, aside(model):
        for name, module in model.named_modules():
            if not any(module.children()) and not isinstance(module, _WITHOUT):
                handle = module.register_forward_hook(_noting(layers, name or "model"))
                stack.callback(handle.remove)
        with attention:
            forward()
    return {"layers": layers, "attention": attention.calls}


def _noting(layers: dict[str, dict[str, float | None]], name: str) -> Callable[..., None]:
    def note(_module: nn.Module, _inputs: object, output: Any) -> None:
        is_dense = isinstance(output, torch.Tensor) and output.layout is torch.strided and not output.is_nested
        is_told = is_dense and output.is_floating_point() and output.numel() and not output.is_meta
        if is_told and (name in layers or len(layers) < MOST):
            layers[name] = _of(output.detach())

    if "torch._dynamo" not in sys.modules:  # then nothing is compiled; loading it takes more than a second
        return note
    hook: Callable[..., None] = torch.compiler.disable(note)  # type: ignore[no-untyped-call]
    return hook


def _of(output: torch.Tensor) -> dict[str, float | None]:
    values = output.float()
    seen = {"rms": _finite(values.square().mean().sqrt())}
    is_zero = values == 0
    if bool(is_zero.any()) and values.ndim > 1:
        units = 1 if values.ndim == 4 else values.ndim - 1  # of images, which are B C height width
        others = [axis for axis in range(values.ndim) if axis != units]
        seen |= {"zeros": _finite(is_zero.float().mean()), "dead": _finite(is_zero.all(dim=others).float().mean())}
    return seen


class _Attention(TorchFunctionMode):
    """Collects the calls while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[dict[str, float | None]] = []

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func is F.scaled_dot_product_attention and len(self.calls) < MOST:
            order = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            with torch.no_grad(), contextlib.suppress(RuntimeError, ValueError):  # of tensors such as nested ones
                self.calls.append(_attended({**dict(zip(order, args, strict=False)), **named}))
        return func(*args, **named)


def _attended(given: Mapping[str, Any]) -> dict[str, float | None]:
    query, key = given["query"], given["key"]
    if query.ndim == 2:  # neither samples nor heads
        query, key = query[None], key[None]
    query, key = query[:ROWS].float(), key[:ROWS].float()
    at = _some_queries(query, key)
    query = query[..., at, :]
    mask, scale = given.get("attn_mask"), given.get("scale")
    if given.get("enable_gqa"):
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    logits = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if given.get("is_causal"):
        mask = torch.arange(key.shape[-2], device=at.device) <= at[:, None]
    elif mask is not None:
        mask = mask[:ROWS] if mask.ndim == logits.ndim and mask.shape[0] > 1 else mask
        mask = mask[..., at, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask
    visible = logits.isfinite().sum(-1)
    shares = logits.softmax(-1)
    entropy = torch.special.entr(shares).sum(-1) / visible.clamp(min=2).log()
    seen = entropy[visible > 1]
    finite = logits[logits.isfinite()]
    return {
        "entropy": _finite(seen.mean()) if len(seen) else None,
        "max_logit": _finite(finite.max()) if len(finite) else None,
    }


def _some_queries(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The places of those that are looked at: all, or as many as `LOGITS` allows, spread over the sequence."""
    count = query.shape[-2]
    for_each = math.prod(query.shape[:-2]) * key.shape[-2]
    return torch.arange(0, count, math.ceil(count * for_each / LOGITS) or 1, device=query.device)


def _finite(value: torch.Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
