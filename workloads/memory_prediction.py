"""How much memory training will need, foretold without allocating it: the loop itself runs, on fake tensors.

Fake tensors (torch's `FakeTensorMode`) have shapes and types but no data; `MemoryTracker` adds up what they would take.
They are all on the CPU, because a torch without CUDA aborts on fake CUDA tensors; the same shapes take the same bytes
there, but for the kernels' own workspaces. Run it in a process of its own: what is imported and set for it stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from workloads.batches import Data
from workloads.contract import Fidelity, ProbeConfig
from workloads.memory_tracker import MemoryTracker
from workloads.trainable import Trainable, collate, held_out, tokens_per_sample
from workloads.training import train

STEPS = 2  # the optimizer has its state only after the first


@dataclass(frozen=True, slots=True)
class Prediction:
    """The peaks of a training step and of the evaluation after it, in bytes of tensors."""

    micro_batch: int
    training_bytes: int
    evaluation_bytes: int

    @property
    def peak_bytes(self) -> int:
        return max(self.training_bytes, self.evaluation_bytes)


def predict(workload: Trainable, config: ProbeConfig) -> Prediction:
    """The peaks that `train` would reach on this configuration, with its micro-batch and accumulation.

    Whatever the workload raises on fake tensors passes through: it reads values to decide what to compute, or is not
    made of torch operations.
    """
    loop = replace(config, device="cpu", fidelity=Fidelity("steps", STEPS, 1), resume_dir=None)
    resident = 0
    if torch.device(config.device).type != "cpu":  # there the evaluation data are a copy
        tensors = tree_leaves(held_out(workload, config.split))
        resident = sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    # In evaluation a layer of torch's transformer is one kernel, which would hide what it allocates.
    torch.backends.mha.set_fastpath_enabled(False)
    with FakeTensorMode(allow_non_fake_inputs=True), MemoryTracker(reads_as_one=True) as tracker:
        probe = _PeakProbe(tracker)
        train(_Imagined(workload), loop, probe)
    micro_batch = int(config.derived["micro_batch"])
    return Prediction(micro_batch, probe.training_bytes + resident, probe.evaluation_bytes + resident)


class _PeakProbe:
    """Reads the tracker where the loop turns from training to evaluation, and after that."""

    steps = STEPS
    training_bytes = evaluation_bytes = 0

    def __init__(self, tracker: MemoryTracker) -> None:
        self._tracker = tracker

    def due(self, step: int) -> bool:
        self.training_bytes = max(self.training_bytes, self._tracker.take_peak())
        return step == STEPS

    def report(self, **_: float) -> None:
        self.evaluation_bytes = self._tracker.take_peak()


class _Imagined:
    """The workload with a model that stays where it is: a module of fake tensors cannot be moved, not even nowhere."""

    def __init__(self, workload: Trainable) -> None:
        self._workload = workload
        self.tokens_per_sample = tokens_per_sample(workload)
        self.train_data, self.eval_data = workload.train_data, workload.eval_data
        self.loss, self.evaluate, self.collate = workload.loss, workload.evaluate, collate(workload)

    def test_data(self) -> Data:
        return held_out(self._workload, "test")

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        model = self._workload.model(config)
        object.__setattr__(model, "to", lambda *_, **__: model)
        return model
