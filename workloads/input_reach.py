"""Whether what a model is given reaches its loss, and if not, where it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

Change = Callable[[torch.Tensor], torch.Tensor]
SAME = 1e-7  # relative


class Outermost:
    """While it is entered, what the outermost calls of the model's modules get and give."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._depth = 0
        self._handles: list[Any] = []
        self.inputs: list[torch.Tensor] = []
        self.outputs: list[torch.Tensor] = []

    def __enter__(self) -> Self:
        for module in self._model.modules():
            self._handles.append(module.register_forward_pre_hook(self._before, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._after, always_call=True))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        if self._depth > 1:
            return None
        self.inputs += [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        return self._given(args, kwargs)

    def _given(self, args: Any, kwargs: Any) -> Any:  # noqa: ARG002 - as it is
        return None

    def _after(self, _module: nn.Module, _args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._got(output)

    def _got(self, output: Any) -> None:
        self.outputs += _tensors(output)


class Changed(Outermost):
    """While it is entered, the tensors that the outermost calls get are changed; `inputs` is what they were."""

    def __init__(self, model: nn.Module, change: Change) -> None:
        super().__init__(model)
        self._change = change

    def _given(self, args: Any, kwargs: Any) -> Any:
        return tree_map(self._changed, (args, kwargs))

    def _got(self, output: Any) -> None: ...

    def _changed(self, leaf: Any) -> Any:
        return self._change(leaf) if isinstance(leaf, torch.Tensor) and leaf.ndim > 0 else leaf


class Trace:
    """What each innermost module gets and gives, by name, the first time that it is called."""

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules() if not any(module.children())}
        self._handles: list[Any] = []
        self.seen: dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}

    def __enter__(self) -> Trace:
        for module in self._names:
            self._handles.append(module.register_forward_hook(self._keep))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        self.seen.setdefault(self._names[module], (_tensors(args), _tensors(output)))


def shuffled(seed: int) -> Change:
    """Rows in another order, each tensor in one of its own."""
    generator = torch.Generator().manual_seed(seed)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        return tensor[torch.randperm(len(tensor), generator=generator).to(tensor.device)]

    return change


def lost_at(before: Trace, after: Trace) -> str | None:
    """The first module that still gets different inputs and gives the same outputs; None where none got any."""
    for name, (inputs, outputs) in before.seen.items():
        if name not in after.seen:
            continue
        new_inputs, new_outputs = after.seen[name]
        if differ(inputs, new_inputs) and not differ(outputs, new_outputs):
            return name
    return None


def fading(before: Trace, after: Trace, name: str) -> float:
    """How much is left, in what this module gets, of the difference in what the first one gets."""
    changes = {each: _change(before.seen[each][0], after.seen[each][0]) for each in before.seen if each in after.seen}
    first = next((change for change in changes.values() if change > 0), 0.0)
    return changes[name] / first if first else 0.0


def _change(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max((float((a - b).abs().max()) for a, b in zip(first, second, strict=False) if a.numel()), default=0.0)


def differ(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    """Whether any of them differs, beyond rounding."""
    return any(
        a.shape != b.shape or not torch.allclose(a, b, rtol=SAME, atol=0.0) for a, b in zip(first, second, strict=False)
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf.detach().float().clone() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
