"""A backward pass on the side, in fp32: its gradients, and no trace of it in the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from workloads.buffers import kept_buffers
from workloads.magnitudes import Magnitudes, sample
from workloads.settings import Settings
from workloads.team import LossFunction, Team


class Reference:
    """Gradients of the first samples of a step's batch. `take(step, count)` gives these samples.

    A quarter of the micro-batch, so that fp32 needs no more memory than the step itself; of several ranks each takes
    its own. What cannot be computed on so few samples (a norm over a batch of one) is not looked at again, and never
    ends the run.
    """

    def __init__(
        self, model: nn.Module, loss: LossFunction, take: Callable[[int, int], Any], settings: Settings, team: Team
    ) -> None:
        self._model, self._loss, self._take, self._settings, self._team = model, loss, take, settings, team
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._is_usable = True

    def norm(self, step: int, count: int) -> torch.Tensor:
        """The norm of the mean gradient of `count` samples; of several ranks the root of the mean of its square.

        NaN where it cannot be computed.
        """
        found = [gradient for gradient in self._gradients(step, count) if gradient is not None]
        norm = torch.nn.utils.get_total_norm(found) if found else torch.full((), torch.nan)
        return self._team.mean((norm**2).to(self._parameters[0].device)).sqrt()

    def magnitudes(self, step: int) -> tuple[Magnitudes, Magnitudes]:
        """Of parameters and of activations, as the step's own backward pass would have them without a loss scale."""
        micro_batch, accumulation = self._settings.micro_batch, self._settings.accumulation
        count = min(micro_batch, max(2, micro_batch // 4))
        parameters = Magnitudes()
        with ActivationGradients(self._model, count / (micro_batch * accumulation)) as activations:
            parameters.add(self._gradients(step, count), 1 / accumulation)
        for each in (parameters, activations.magnitudes):
            self._team.mean(each.counts)
        return parameters, activations.magnitudes

    def _gradients(self, step: int, count: int) -> list[torch.Tensor | None]:
        if not self._is_usable:
            return []
        try:
            with aside(self._model), torch.autocast(self._parameters[0].device.type, enabled=False):
                loss = self._loss(self._model, self._take(step, count))
                return list(torch.autograd.grad(loss, self._parameters, allow_unused=True))
        except Exception:  # the workload's, on a batch that it would not have got without us
            self._is_usable = False
            return []


@contextmanager
def aside(model: nn.Module) -> Iterator[None]:
    """What runs in here changes no buffer of the model (running statistics) and no generator of torch or Python."""
    device = next(model.parameters()).device
    python = random.getstate()
    with kept_buffers(model), torch.random.fork_rng([device] if device.type == "cuda" else []):
        try:
            yield
        finally:
            random.setstate(python)


class ActivationGradients:
    """Counts, while it is entered, the gradients of what the model's innermost modules give."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        self.magnitudes = Magnitudes()
        self._samples: list[torch.Tensor] = []
        self._model, self._factor = model, factor
        self._handles: list[Any] = []

    def __enter__(self) -> ActivationGradients:
        for module in self._model.modules():
            if not any(module.children()):
                self._handles.append(module.register_forward_hook(self._watch))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self.magnitudes.add(self._samples, self._factor)
        self._samples.clear()

    def _watch(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(self._count)  # type: ignore[no-untyped-call]  # torch

    def _count(self, gradient: torch.Tensor) -> None:
        self._samples.append(sample(gradient).clone())
