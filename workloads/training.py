"""The one training loop, for the built-ins and for a user's class.

A step: gradients accumulated over micro-batches and averaged over the ranks, clip, optimizer at the scheduled learning
rate. On due steps: evaluate, report, save if that is answered with a pause. A resumed run goes on bit for bit, except
on the seconds axis, where a run does as much as its time allows; there only training counts, neither evaluation nor
waiting for a decision.
"""

from __future__ import annotations

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from workloads import activations
from workloads.activation_checkpointing import checkpoint_blocks
from workloads.batches import Data, Order, gather, is_at_hand, length, take, to_device
from workloads.checkpoint import Checkpoint, seed_everything
from workloads.contract import Diverged, Pause, Probe, ProbeConfig
from workloads.health import Health
from workloads.horizon import Horizon
from workloads.leaks import LeakWatch
from workloads.loading import Loader
from workloads.optimizers import Clip, build_optimizer, gradient_norm
from workloads.precision import MixedPrecision
from workloads.reference import Reference
from workloads.schedule import learning_rate
from workloads.settings import Settings
from workloads.team import Team
from workloads.trainable import Trainable, collate, held_out, tokens_per_sample

NO_BLOCKS = (
    "activations are kept, though checkpointing is asked for: the model has no list or sequence of modules whose "
    "activations can be computed again (what is compiled is left as it is)"
)


def train(workload: Trainable, config: ProbeConfig, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
    """Train one probe to the end of its horizon.

    Raises `Diverged` when loss, gradient or metric are not finite (fp16 skips the step of such a gradient instead, as
    long as a smaller loss scale may help), lets `Stop` pass; before a `Pause` passes the state is in
    `config.checkpoint_dir`. With `config.resume_dir` it goes on from there; raises CheckpointError where that is not
    what `config.resume_at` says. In a process group it is one of the ranks: together they take the steps that one
    process would take with the same batch size.
    """
    with contextlib.ExitStack() as until_the_end:
        _train(workload, config, probe, clock, until_the_end)


def _train(  # noqa: PLR0912, PLR0915 - one loop, to be read from top to bottom
    workload: Trainable,
    config: ProbeConfig,
    probe: Probe,
    clock: Callable[[], float],
    until_the_end: contextlib.ExitStack,
) -> None:
    if not config.fidelity.is_known:
        raise ValueError("fidelity.max is not given, and x5tune owns this loop: say how long a full run is")
    settings, team = Settings.of(config), Team.current()
    torch.set_num_threads(settings.threads)
    seed_everything(config.seed)
    device = team.device(config.device)

    train_data = workload.train_data()
    order = Order(length(train_data), config.seed)
    evaluation_data = to_device(held_out(workload, config.split), device)
    tokens = tokens_per_sample(workload)
    is_timed = config.fidelity.axis == "seconds"
    shared_clock = (lambda: team.from_lead(clock)) if is_timed else clock
    horizon = Horizon.of(config.fidelity, settings.batch_size, tokens, shared_clock)

    model = workload.model(config.parameters)
    if config.derived.get("checkpointing") and not checkpoint_blocks(model):
        tell(probe, {"type": "note", "name": "no_checkpointing", "text": NO_BLOCKS})
    model = model.to(device)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = build_optimizer(model, settings)
    precision = MixedPrecision(config.precision, device, settings.loss_scale)
    clip = Clip(settings)
    replica = team.replica(model, workload.loss)
    team.seed_apart(config.seed)
    health = Health(trainable, settings)

    def first_samples(step: int, count: int) -> Any:
        first = (step - 1) * settings.batch_size + team.rank * settings.micro_batch
        return take(train_data, order.indices(first, count), device, collate(workload))

    def micro_batch(number: int) -> Any:
        steps, part = divmod(number, settings.accumulation)
        first = steps * settings.batch_size + (part * team.size + team.rank) * settings.micro_batch
        return gather(train_data, order.indices(first, settings.micro_batch), collate(workload))

    loader = Loader(micro_batch, config.seed, most=0 if is_at_hand(train_data) else settings.threads)
    until_the_end.callback(loader.close)
    reference = Reference(model, workload.loss, first_samples, settings, team)
    checkpoint = Checkpoint(model, optimizer, precision, clip, health, team)

    step, losses = 0, list[float]()
    if config.resume_dir is not None:
        step, position = checkpoint.load(config.resume_dir, config.resume_at)
        horizon.resume(step, position)

    while not horizon.is_over(step):
        progress_before, step = horizon.progress(step), step + 1
        model.train()
        optimizer.zero_grad(set_to_none=True)
        health.begin()
        small_norm: torch.Tensor | None = None
        if health.sees_noise(step) and not health.is_accumulated:
            small_norm = reference.norm(step, health.small_batch)
        if precision.is_measured(step) and (changed := precision.calibrate(*reference.magnitudes(step))):
            tell(probe, {"type": "note", "name": "precision_changed", "text": f"at step {step} {changed}"})
        loss_sum = torch.zeros((), device=device)
        for part in range(settings.accumulation):
            with health.waiting():
                batch = loader.get((step - 1) * settings.accumulation + part)
                moved = to_device(batch, device)
            with precision.autocast():
                loss = replica.loss(moved, is_last=part == settings.accumulation - 1) / settings.accumulation
            precision.backward(loss)
            loss_sum += loss.detach()
            if part == 0 and health.is_accumulated and health.sees_noise(step):
                square = (gradient_norm(trainable) * settings.accumulation / precision.scale) ** 2
                small_norm = team.mean(square).sqrt()
        training_loss = float(team.mean(loss_sum))
        if not math.isfinite(training_loss):
            raise Diverged(f"training loss at step {step} is {training_loss}")

        precision.unscale(optimizer)
        norm = clip.apply(trainable, progress_before)
        is_finite = math.isfinite(norm)
        if not (is_finite or precision.is_scaled):
            raise Diverged(f"gradient norm at step {step} is {norm}")
        health.see_norm(norm, clip.bound(progress_before))
        if small_norm is not None:
            health.see_noise(float(small_norm), norm)
        progress = progress_before if is_timed else horizon.progress(step)  # the clock is read after the step
        lr = learning_rate(settings, step, progress, None if is_timed else horizon.steps)
        for group in optimizer.param_groups:
            group["lr"] = lr
        health.before_update(step)
        if lowered := precision.step(optimizer, step, is_overflown=not is_finite):
            tell(probe, {"type": "note", "name": "loss_scale_lowered", "text": lowered})
        health.after_update(is_skipped=not is_finite)
        losses.append(training_loss)
        for name, text in loader.adapt(*health.times()):
            tell(probe, {"type": "note", "name": name, "text": text})

        if not (probe.due(step) or horizon.is_over(step)):
            continue
        if config.activations:
            with precision.autocast():
                moved = to_device(batch, device)  # once more: a loss may have taken out of it what it needs
                seen = activations.look(model, lambda: workload.loss(model, moved))  # noqa: B023 - called at once
            tell(probe, {"type": "health", "values": {"activations": seen}})
        model.eval()
        with torch.no_grad(), precision.autocast():  # no inference mode, whose tensors no later step could train with
            metrics = team.evaluated(model, lambda: dict(workload.evaluate(model, evaluation_data)))
        state = {"train_loss": sum(losses) / len(losses), "grad_norm": norm, "lr": lr, **precision.health()}
        pace = {"data_wait": health.data_wait(), "samples_per_s": health.samples_per_s()}
        tell(probe, {"type": "health", "values": {**pace, **precision.account()}})
        place = {"samples": float(step * settings.batch_size)}
        place |= {"tokens": place["samples"] * tokens} if tokens else {}
        place |= {"seconds": horizon.position(step)} if is_timed else {}
        losses.clear()
        pause: Pause | None = None
        try:
            probe.report(step=step, **{**state, **health.report(), **metrics, **place})
        except Pause as told:
            pause = told
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise Diverged(f"{name} at step {step} is {value}")
        if pause is not None:
            checkpoint.save(config.checkpoint_dir, step, horizon.position(step))
            raise pause
        horizon.resume(step, horizon.position(step))


def tell(probe: Probe, message: Mapping[str, Any]) -> None:
    """Say something that is not answered, where the probe can pass it on."""
    send: Callable[[Mapping[str, Any]], None] | None = getattr(probe, "send", None)
    if send is not None:
        send(message)


def train_watched(workload: Trainable, config: ProbeConfig, probe: Probe) -> None:
    """`train`, with an eye on memory that grows from step to step, where the probe can pass that on."""
    send: Callable[[Mapping[str, Any]], None] | None = getattr(probe, "send", None)
    if send is None:
        return train(workload, config, probe)
    watch = LeakWatch(probe, lambda text: send({"type": "note", "name": "memory_growth", "text": text}))
    try:
        return train(workload, config, watch)
    finally:
        watch.close()


class TrainingWorkload(ABC):
    """A `Workload` that the loop trains: the base of the built-ins, and of a user's class that wants a `run`."""

    tokens_per_sample: int | None = None
    can_pause = True

    @abstractmethod
    def model(self, config: Mapping[str, Any], /) -> nn.Module: ...

    @abstractmethod
    def train_data(self) -> Data: ...

    @abstractmethod
    def eval_data(self) -> Data: ...

    def test_data(self) -> Data:
        """Untouched by search; the validation data where a workload has no others."""
        return self.eval_data()

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor: ...

    @abstractmethod
    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]: ...

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        train_watched(self, config, probe)

    def measure(self, config: ProbeConfig, probe: Any) -> dict[str, Any]:
        """What phase fit wants to know (`workloads.memory_proof.measure`)."""
        from workloads.memory_proof import measure

        return measure(self, config, probe)
