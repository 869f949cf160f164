"""The one training loop, for the built-ins and for a user's class.

On every step: gradients accumulated over micro-batches, clip, optimizer step at the scheduled learning rate. On due
steps: evaluate, report, and, where the probe has a folder for it, save. A resumed run continues bit for bit (except on
the seconds axis, where a run does as much as its time allows).
"""

from __future__ import annotations

import math
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from workloads.batches import Data, Order, length, take, to_device
from workloads.contract import Diverged, Probe, ProbeConfig
from workloads.horizon import Horizon
from workloads.optimizers import Clip, build_optimizer
from workloads.precision import MixedPrecision
from workloads.schedule import learning_rate
from workloads.settings import Settings

STATE_FILE = "state.pt"


class Trainable(Protocol):
    """What a class has to have for the loop to train it; no base class is needed.

    It may also have `test_data()`, which only confirmation reads, and `tokens_per_sample` for the tokens axis.
    """

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        """A fresh model for these parameters; the loop has seeded torch."""

    def train_data(self) -> Data: ...

    def eval_data(self) -> Data: ...

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        """The mean training loss of a batch."""

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        """Metrics on `data` (tensors are on the model's device), the same names on every split.

        Called in eval mode without gradients.
        """


class TrainingWorkload(ABC):
    """A `Trainable` that is a `Workload` by way of the loop: the base of the built-ins."""

    tokens_per_sample: int | None = None

    @abstractmethod
    def model(self, config: Mapping[str, Any], /) -> nn.Module: ...

    @abstractmethod
    def train_data(self) -> Data: ...

    @abstractmethod
    def eval_data(self) -> Data: ...

    @abstractmethod
    def test_data(self) -> Data: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor: ...

    @abstractmethod
    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]: ...

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        train(self, config, probe)


def train(workload: Trainable, config: ProbeConfig, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
    """Train one probe to the end of its horizon.

    Raises `Diverged` when loss, gradient or metric are not finite, lets `Stop` pass. `config.resume_dir` is where the
    state is kept (None: nowhere): saved after each report, whether or not it was answered with `Stop`, and gone on
    from if there. A probe killed between a report and its save repeats that report with the same numbers.
    """
    settings = Settings.of(config)
    torch.set_num_threads(settings.threads)
    torch.manual_seed(config.seed)
    random.seed(config.seed)
    device = torch.device(config.device)
    model = workload.model(config.parameters).to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = build_optimizer(model, settings)
    precision = MixedPrecision(config.precision, device, settings.loss_scale)
    clip = Clip(settings)
    train_data, held_out = workload.train_data(), to_device(_held_out(workload, config), device)
    order = Order(length(train_data), config.seed)
    tokens_per_sample: int | None = getattr(workload, "tokens_per_sample", None)
    horizon = Horizon.of(config.fidelity, settings.batch_size, tokens_per_sample, clock)
    is_timed = config.fidelity.axis == "seconds"
    step, losses = 0, list[float]()

    state_path = Path(config.resume_dir) / STATE_FILE if config.resume_dir else None
    if state_path and state_path.exists():
        state = torch.load(state_path, map_location=device, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        precision.load_state_dict(state["precision"])
        clip.largest_norm = state["largest_norm"]
        step = state["step"]
        horizon.resume(step, state["position"])
        _set_random_state(state["random"])

    while not horizon.is_over(step):
        # one optimizer step
        progress_before, step = horizon.progress(step), step + 1
        lr = learning_rate(settings, step, horizon.progress(step), None if is_timed else horizon.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        model.train()
        optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for micro_step in range(settings.accumulation):
            seen = (step - 1) * settings.batch_size + micro_step * settings.micro_batch
            batch = take(train_data, order.indices(seen, settings.micro_batch), device)
            with precision.autocast():
                loss = workload.loss(model, batch) / settings.accumulation
            loss_sum += float(loss.detach())
            precision.backward(loss)
        if not math.isfinite(loss_sum):
            raise Diverged(f"training loss at step {step} is {loss_sum}")
        precision.scaler.unscale_(optimizer)
        norm = clip.apply(parameters, progress_before)
        if not math.isfinite(norm) and not precision.is_scaled:
            raise Diverged(f"gradient norm at step {step} is {norm}")
        precision.step(optimizer, step, is_overflown=not math.isfinite(norm))
        losses.append(loss_sum)
        if not (horizon.is_over(step) or probe.due(step)):
            continue

        # evaluate, report, save
        model.eval()
        with torch.inference_mode(), precision.autocast():
            metrics = dict(workload.evaluate(model, held_out))
        health = {"train_loss": sum(losses) / len(losses), "grad_norm": norm, "lr": lr} | precision.health()
        place = {"samples": float(step * settings.batch_size)}
        if tokens_per_sample:
            place["tokens"] = place["samples"] * tokens_per_sample
        if is_timed:
            place["seconds"] = horizon.position(step)
        losses.clear()
        try:
            probe.report(step=step, **place, **metrics, **health)
        finally:
            if state_path:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "precision": precision.state_dict(),
                    "largest_norm": clip.largest_norm,
                    "step": step,
                    "position": horizon.position(step),
                    "random": _random_state(),
                }
                _save(state, state_path)
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} at step {step} is {value}")


def _held_out(workload: Trainable, config: ProbeConfig) -> Data:
    """The data that the objective is measured on; without `test_data` confirmation uses validation data too."""
    test_data: Callable[[], Data] | None = getattr(workload, "test_data", None)
    return test_data() if config.split == "test" and test_data else workload.eval_data()


def _random_state() -> dict[str, Any]:
    """The generators that a model or a dataset may draw from: torch's and Python's, not NumPy's."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"]:
        torch.cuda.set_rng_state_all([each.cpu() for each in state["cuda"]])
    random.setstate(state["python"])


def _save(state: dict[str, Any], path: Path) -> None:
    """Write to a temporary name, then move: a reader finds the old state or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    torch.save(state, temporary)
    temporary.replace(path)
