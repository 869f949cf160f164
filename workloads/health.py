"""What a run tells of itself beside its metrics: whether gradients, updates and data are as they should be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import nn

from workloads.magnitudes import sample
from workloads.noise import NoiseScale
from workloads.settings import Settings

UPDATE_EVERY, UPDATE_FIRST = 20, 3  # steps at which the update is measured
UPDATE_SAMPLED = 4096  # elements of each tensor
RECENT = 20
JUMP = 5.0  # times the median of the recent norms
NOISE_EVERY, NOISE_FIRST = 40, 10
NOISE_EVERY_ACCUMULATED = 5
SMALL_SHARE = 4  # without accumulation the small batch is a quarter of the batch


class Health:
    """Collects over the steps; `report` is what is known so far. All but the waiting time follows from seed and step.

    * `update_ratio`: the norm of the last measured update over that of the weights, from samples of every tensor.
    * `clip_share`: of all steps, how many were clipped.
    * `norm_jumps`: steps whose norm was more than `JUMP` times the median of the `RECENT` ones before.
    * `noise_scale`: see `workloads.noise`.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], settings: Settings, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._parameters, self._settings, self._clock = list(parameters), settings, clock
        self._norms: list[float] = []
        self._steps = self._steps_here = self._clipped = self._jumps = 0
        self._update_ratio: float | None = None
        self._before: torch.Tensor | None = None
        self._began = self._waited_s = self._step_s = 0.0
        self.noise = NoiseScale()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what the step has to wait for."""
        began = self._clock()
        try:
            yield
        finally:
            self._waited_s += self._clock() - began

    def sees_noise(self, step: int) -> bool:
        """Whether the gradient of a smaller batch is wanted at this step: the first micro-batch's, or one aside."""
        if self.is_accumulated:
            return step % NOISE_EVERY_ACCUMULATED == 0
        return self.small_batch > 0 and step % NOISE_EVERY == NOISE_FIRST

    @property
    def is_accumulated(self) -> bool:
        return self._settings.accumulation > 1

    @property
    def small_batch(self) -> int:
        """The samples of the smaller batch, on each rank: a micro-batch, or where there is one only a part of it."""
        return self._settings.micro_batch if self.is_accumulated else self._settings.micro_batch // SMALL_SHARE

    def see_noise(self, small_norm: float, norm: float) -> None:
        """The norms of the smaller batch's mean gradient and of the step's own."""
        if math.isfinite(small_norm) and math.isfinite(norm):
            self.noise.add(self.small_batch, small_norm, self._settings.batch_size, norm)

    def see_norm(self, norm: float, bound: float | None) -> None:
        """The step's gradient norm before the clip, and the clip's bound."""
        self._steps += 1
        if not math.isfinite(norm):
            return
        self._clipped += bound is not None and norm > bound
        if len(self._norms) >= RECENT // 2 and norm > JUMP * min(self._norms):  # the median takes longer
            self._jumps += norm > JUMP * median(self._norms)
        self._norms = [*self._norms, norm][-RECENT:]

    def begin(self) -> None:
        """A step begins."""
        self._began = self._clock()

    def before_update(self, step: int) -> None:
        if step % UPDATE_EVERY == UPDATE_FIRST:
            self._before = self._sampled()

    def after_update(self, *, is_skipped: bool) -> None:
        """The step is over; its update may have been skipped."""
        self._step_s += self._clock() - self._began
        self._steps_here += 1
        if self._before is None or is_skipped:
            self._before = None
            return
        weights = float(self._before.norm())
        if weights > 0:
            self._update_ratio = float((self._sampled() - self._before).norm()) / weights
        self._before = None

    def _sampled(self) -> torch.Tensor:
        """Of each tensor some elements, weighed so that the norm is about that of all of them."""
        parts = []
        for parameter in self._parameters:
            part = sample(parameter, UPDATE_SAMPLED)
            parts.append(part.float() * math.sqrt(parameter.numel() / max(1, len(part))))
        return torch.cat(parts)

    def report(self) -> dict[str, float]:
        """What has been seen so far; what has not is left out."""
        seen: dict[str, float] = {
            "clip_share": self._clipped / max(1, self._steps),
            "norm_jumps": float(self._jumps),
        }
        if self._update_ratio is not None:
            seen["update_ratio"] = self._update_ratio
        if self.noise.samples is not None:
            seen["noise_scale"] = self.noise.samples
        return seen

    def samples_per_s(self) -> float | None:
        """The rate of training so far in this process, without evaluations."""
        return self._steps_here * self._settings.batch_size / self._step_s if self._step_s > 0 else None

    def times(self) -> tuple[float, float]:
        """The seconds of waiting for data and of all of the training, so far in this process."""
        return self._waited_s, self._step_s

    def data_wait(self) -> float:
        """The share of the training time that was spent waiting for data, so far in this process."""
        return self._waited_s / self._step_s if self._step_s > 0 else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {
            "norms": self._norms,
            "steps": self._steps,
            "clipped": self._clipped,
            "jumps": self._jumps,
            "update_ratio": self._update_ratio,
            "noise": self.noise.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._norms, self._steps = list(state["norms"]), state["steps"]
        self._clipped, self._jumps = state["clipped"], state["jumps"]
        self._update_ratio = state["update_ratio"]
        self.noise.load_state_dict(state["noise"])
