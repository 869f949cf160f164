"""Optimizers over decay groups, and the gradient clip."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn

from workloads.parameters import LAMB_PACKAGE, LAMB_REMEDY
from workloads.settings import Settings

CALIBRATION_FRACTION = 0.05
"""The share of a run in which a relative clip only watches the norms."""


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable tensors in two groups: weight decay on matrices and above, none on biases, norms and vectors."""
    spared = {id(p) for module in model.modules() if _is_norm(module) for p in module.parameters(recurse=False)}
    spared |= {id(p) for name, p in model.named_parameters() if p.ndim < 2 or name.rpartition(".")[2] == "bias"}
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if id(p) not in spared], "weight_decay": weight_decay},
        {"params": [p for p in trainable if id(p) in spared], "weight_decay": 0.0},
    ]


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower() and not any(module.children())


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer that was asked for, over the decay groups.

    AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), SGD with momentum and Adafactor (Shazeer and Stern 2018,
    arXiv:1804.04235) as torch.optim defines them; LAMB (You et al. 2020, arXiv:1904.00962, version 3: no bias
    correction) as pytorch-optimizer does. Raises ModuleNotFoundError with the remedy where that is not installed.
    """
    groups = decay_groups(model, settings.weight_decay)
    betas = (settings.beta1, settings.beta2)
    match settings.optimizer:
        case "adamw":
            return torch.optim.AdamW(groups, lr=settings.lr, betas=betas, eps=settings.eps, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=settings.lr, momentum=settings.momentum, fused=True)
        case "adafactor":
            return torch.optim.Adafactor(groups, lr=settings.lr)
        case "lamb":
            lamb: torch.optim.Optimizer = _lamb()(groups, lr=settings.lr, betas=betas, eps=settings.eps)
            return lamb


def _lamb() -> Any:
    try:
        return importlib.import_module(LAMB_PACKAGE).Lamb
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(LAMB_REMEDY, name=LAMB_PACKAGE) from error


def gradient_norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    """The norm of all gradients that are there, as one vector."""
    return torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])


class Clip:
    """Clips the gradient's norm to a bound: a number, a multiple of the largest norm seen while calibrating, or none.

    While calibrating (the first `CALIBRATION_FRACTION` of the run, at least one step) a relative clip leaves
    gradients as they are. `largest_norm` is the state that a resumed run needs.
    """

    def __init__(self, settings: Settings) -> None:
        self._clip, self._is_relative = settings.grad_clip, settings.grad_clip_relative
        self.largest_norm = 0.0

    def bound(self, progress: float) -> float | None:
        """The bound at this progress of the run (0..1, before the step); None: gradients stay as they are."""
        if self._clip is None or not self._is_relative:
            return self._clip
        if progress < CALIBRATION_FRACTION or self.largest_norm == 0:
            return None
        return self._clip * self.largest_norm

    def apply(self, parameters: list[nn.Parameter], progress: float) -> float:
        """Clip in place; returns the norm before. A norm that is not finite is returned and nothing else happens."""
        norm = gradient_norm(parameters)
        norm_value = float(norm)
        if norm_value - norm_value != 0:  # infinite or NaN
            return norm_value
        bound = self.bound(progress)
        if bound is None:
            if self._is_relative and progress < CALIBRATION_FRACTION:
                self.largest_norm = max(self.largest_norm, norm_value)
        elif norm_value > bound:
            torch.nn.utils.clip_grads_with_norm_(parameters, bound, norm)
        return norm_value
