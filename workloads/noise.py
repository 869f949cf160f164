"""The gradient noise scale: from which batch size on larger batches save few steps."""

from __future__ import annotations

from typing import Any


class NoiseScale:
    """Estimates the simple noise scale tr(S) / |G|^2 from gradients on a small and a large batch.

    McCandlish et al. 2018 (arXiv:1812.06162), appendix A.1: one pair of squared norms gives unbiased estimates of |G|^2
    and of tr(S); their ratio would be biased, so both are averaged over the run first. Its unit is
    samples: at a batch of this size a run takes twice the steps and twice the samples of the best it could (eq. 2.11).
    """

    def __init__(self) -> None:
        self._signal, self._noise = 0.0, 0.0
        self.pairs = 0

    def add(self, small_batch: int, small_norm: float, large_batch: int, large_norm: float) -> None:
        """The norms of two gradients, the mean ones of `small_batch` and of `large_batch` samples."""
        small, large = small_norm**2, large_norm**2
        self._signal += (large_batch * large - small_batch * small) / (large_batch - small_batch)
        self._noise += (small - large) / (1 / small_batch - 1 / large_batch)
        self.pairs += 1

    @property
    def samples(self) -> float | None:
        """The noise scale; 0 where the gradients show no noise, None where they are nothing but noise, or few."""
        if self.pairs < 2 or self._signal <= 0:
            return None
        return max(0.0, self._noise) / self._signal

    def state_dict(self) -> dict[str, Any]:
        return {"signal": self._signal, "noise": self._noise, "pairs": self.pairs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._signal, self._noise, self.pairs = state["signal"], state["noise"], state["pairs"]


def trade(batch_size: int, critical_batch: float) -> dict[str, float]:
    """What this batch size costs: steps and samples as multiples of the fewest possible (eq. 2.11)."""
    ratio = critical_batch / batch_size
    return {"steps_factor": 1 + ratio, "samples_factor": 1 + 1 / ratio if ratio > 0 else float("inf")}
