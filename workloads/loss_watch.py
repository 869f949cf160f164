"""What a loss is made of, seen at the level of torch's operations: its terms, their predictions and targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_NLL = (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default)
_ELEMENTWISE = {
    _aten.mse_loss.default: "squared error",
    _aten.smooth_l1_loss.default: "smooth L1",
    _aten.huber_loss.default: "Huber",
    _aten.binary_cross_entropy.default: "binary cross entropy",
    _aten.binary_cross_entropy_with_logits.default: "binary cross entropy",
}
_ACTIVATIONS = {_aten._softmax.default: "softmax", _aten.sigmoid.default: "sigmoid"}


@dataclass(frozen=True, slots=True)
class Term:
    """One loss of the sum: `value` is its plain mean, without smoothing or weights.

    `chance` is what it is worth to know the targets' distribution and nothing else, `floor` the least that it can be.
    `flaw` says what is wrong with its arguments.
    """

    kind: str
    value: float
    chance: float
    floor: float
    classes: int | None = None
    accuracy: float | None = None
    flaw: str | None = None
    is_constant: bool = False


class LossWatch(TorchDispatchMode):
    """Collects the terms of the losses that are computed while it is entered; the last call of each kind counts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.terms: list[Term] = []
        self._logits: dict[int, torch.Tensor] = {}
        self._activated: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is _aten._log_softmax.default:
            self._keep(result)
            self._logits[_place(result)] = args[0]
        elif func in _ACTIVATIONS:
            self._keep(result)
            self._activated[_place(result)] = _ACTIVATIONS[func]
        elif func in _NLL:
            self.terms.append(self._classes(args[0], args[1], int(args[4])))
        elif func in _ELEMENTWISE:
            self.terms.append(self._elementwise(_ELEMENTWISE[func], func, args[0], args[1]))
        return result

    @property
    def main(self) -> Term | None:
        """The term that carries most; None where the loss is made of other operations."""
        return max(self.terms, key=lambda term: term.value, default=None)

    def _keep(self, tensor: torch.Tensor) -> None:
        self._kept.append(tensor)  # so that no other tensor gets its place

    def _classes(self, log_p: torch.Tensor, targets: torch.Tensor, ignored: int) -> Term:
        kept = targets != ignored
        rows = log_p.detach().float().movedim(1, -1) if log_p.ndim > 1 else log_p.detach().float()[None]
        targets, kept = (part.reshape(rows.shape[:-1]) for part in (targets, kept))
        if not bool(kept.any()):
            return Term("cross entropy", 0.0, 0.0, 0.0, rows.shape[-1])
        rows, targets = rows[kept], targets[kept]
        picked = rows.gather(1, targets[:, None])
        share = torch.bincount(targets.reshape(-1)).float() / len(targets)
        logits = self._logits.get(_place(log_p))
        before = None if logits is None else self._activated.get(_place(logits))
        flaw = None
        if before:
            flaw = f"{before} is applied before cross entropy, which applies softmax itself"
        elif logits is None and not torch.allclose(rows.exp().sum(1), torch.ones(()).to(rows), atol=0.05):
            flaw = "nll_loss gets numbers that are no log-probabilities; use cross_entropy, or log_softmax before it"
        return Term(
            "cross entropy",
            float(-picked.mean()),
            math.log(rows.shape[-1]),
            0.0,
            rows.shape[-1],
            float((rows.argmax(1) == targets).float().mean()),
            flaw,
            is_constant=len(targets) > 1 and float(share.max()) == 1.0,
        )

    def _elementwise(self, kind: str, func: Any, given: torch.Tensor, targets: torch.Tensor) -> Term:
        given, targets = given.detach().float(), targets.detach().float()
        flaw = None
        if given.shape != targets.shape:
            flaw = f"predictions of shape {tuple(given.shape)} are compared with targets of {tuple(targets.shape)}"
        value, constant = float(func(given, targets)), targets.mean().expand_as(targets)
        floor = 0.0
        if kind == "binary cross entropy":
            if func is _aten.binary_cross_entropy_with_logits.default:
                if self._activated.get(_place(given)):
                    flaw = flaw or "sigmoid is applied before binary_cross_entropy_with_logits, which applies it itself"
                constant = torch.logit(constant, eps=1e-6)
            floor = float(torch.special.entr(targets).mean() + torch.special.entr(1 - targets).mean())
            floor = max(0.0, floor) if math.isfinite(floor) else 0.0
        chance = float(func(constant, targets))
        return Term(
            kind, value, chance, floor, flaw=flaw, is_constant=targets.numel() > 1 and float(targets.std()) == 0
        )


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
