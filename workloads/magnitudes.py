"""How large gradients are, by powers of two, and what of them fp16 can hold at a loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

LARGEST = 15  # floor(log2) of the largest finite fp16 number, 65504
SMALLEST = -25  # below 2^-25 fp16 rounds to zero; its smallest number is 2^-24
EXPONENTS = range(-150, 128)  # of fp32, subnormal numbers included
SAMPLED = 1 << 16  # elements looked at of each tensor


class Magnitudes:
    """Counts of gradients that are not zero, by floor(log2 |g|), unscaled; those that are not finite count as largest.

    At most `SAMPLED` evenly spaced elements of each tensor are counted.
    """

    def __init__(self, counts: torch.Tensor | None = None) -> None:
        self.counts = torch.zeros(len(EXPONENTS), dtype=torch.float64) if counts is None else counts

    def add(self, gradients: Iterable[torch.Tensor | None], factor: float = 1.0) -> None:
        """Count these, each times `factor`."""
        samples = [sample(gradient).float() for gradient in gradients if gradient is not None]
        if not samples:
            return
        values = torch.cat(samples) * factor
        exponents = torch.frexp(values).exponent - 1
        exponents = torch.where(values.isfinite(), exponents, EXPONENTS[-1])[values != 0]
        places = (exponents - EXPONENTS[0]).clamp(0, len(EXPONENTS) - 1)
        self.counts += torch.bincount(places, minlength=len(EXPONENTS)).double().cpu()

    @property
    def largest(self) -> int | None:
        """floor(log2) of the largest one; None where all are zero."""
        there = self.counts.nonzero()
        return int(there[-1]) + EXPONENTS[0] if len(there) else None

    def flushed(self, scale: float) -> float:
        """The share that becomes zero in fp16 at this loss scale."""
        return self._share(slice(0, max(0, SMALLEST - _exponent(scale) - EXPONENTS[0])))

    def overflowing(self, scale: float) -> float:
        """The share that becomes infinite."""
        return self._share(slice(max(0, LARGEST + 1 - _exponent(scale) - EXPONENTS[0]), None))

    def _share(self, where: slice) -> float:
        total = float(self.counts.sum())
        return float(self.counts[where].sum()) / total if total else 0.0


def sample(tensor: torch.Tensor, most: int = SAMPLED) -> torch.Tensor:
    """At most `most` evenly spaced elements, flat."""
    flat = tensor.detach().reshape(-1)
    return flat[:: math.ceil(len(flat) / most)] if len(flat) > most else flat


def _exponent(scale: float) -> int:
    return math.floor(math.log2(scale))
