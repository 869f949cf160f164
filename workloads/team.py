"""Several processes that train one model: each takes its share of a batch, and all of them take the same decisions.

A run alone is a team of one, for which everything here is the identity. What decides the course of a run (the loss, the
clock, the metrics, what the tuner answers) is the same on all ranks, so that none of them waits for one that has left.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workloads.buffers import layout, layouts, put_buffers
from workloads.contract import Pause, Probe, ProbeConfig, Stop
from workloads.horizon import Horizon

T = TypeVar("T")
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


class Team:
    """The processes of one run, as one of them sees it. Rank 0 leads: it evaluates, reports and saves."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @staticmethod
    def current() -> Team:
        """The team whose process group this process has joined; alone without one."""
        if not (dist.is_available() and dist.is_initialized()):
            return Team()
        return Team(dist.get_rank(), dist.get_world_size())

    @property
    def is_lead(self) -> bool:
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Each rank's own: the GPUs of a trial are numbered from 0."""
        if name != "cuda" or self.size == 1:
            return torch.device(name)
        device = torch.device("cuda", self.rank)
        torch.cuda.set_device(device)
        return device

    def seed_apart(self, seed: int) -> None:
        """Random numbers of their own for all but the lead, once the same model is there: dropout has to differ."""
        if not self.is_lead:
            torch.manual_seed((seed + self.rank * 1_000_003) % 2**63)
            random.seed(f"{seed} {self.rank}")

    def from_lead(self, make: Callable[[], T]) -> T:
        """What `make` gives on the lead, on every rank; the others wait for it."""
        if self.size == 1:
            return make()
        box: list[Any] = [make() if self.is_lead else None]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return cast("T", box[0])

    def evaluated(self, model: nn.Module, evaluate: Callable[[], T]) -> T:
        """What `evaluate` gives on the lead, and on every rank the buffers that it has left there in another layout.

        Their contents meet before each forward pass, which ends the process where the ranks' layouts differ.
        """
        known = layouts(model) if self.size > 1 else {}

        def on_the_lead() -> tuple[T, dict[str, torch.Tensor]]:
            found = evaluate()
            return found, {n: b.cpu() for n, b in model.named_buffers() if self.size > 1 and layout(b) != known.get(n)}

        found, buffers = self.from_lead(on_the_lead)
        if not self.is_lead:
            put_buffers(model, buffers)
        return found

    def gathered(self, value: T) -> list[T]:
        """The `value` of every rank, by rank, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def mean(self, tensor: torch.Tensor) -> torch.Tensor:
        """The mean over the ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
            tensor /= self.size
        return tensor

    def replica(self, model: nn.Module, loss: LossFunction) -> Replica:
        """`loss` of `model`, with gradients that are averaged over the ranks."""
        return Replica(model, loss, is_alone=self.size == 1)


class Replica:
    """One rank's loss. DistributedDataParallel wraps the loss, not the model, so that the user's `loss` sees the model
    itself, with its attributes and methods. Parameters that a step does not use are allowed, as they are alone.
    """

    def __init__(self, model: nn.Module, loss: LossFunction, *, is_alone: bool) -> None:
        module = _LossModule(model, loss)
        self._module: nn.Module = module if is_alone else DistributedDataParallel(module, find_unused_parameters=True)
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")

    def loss(self, batch: Any, *, is_last: bool) -> torch.Tensor:
        """The loss of one micro-batch; the ranks' gradients meet in the backward pass of the last one of a step."""
        waits = isinstance(self._module, DistributedDataParallel) and not is_last
        context: AbstractContextManager[Any] = self._module.no_sync() if waits else contextlib.nullcontext()  # type: ignore[operator]
        with context:
            loss: torch.Tensor = self._module(batch)
        return loss


class _LossModule(nn.Module):
    def __init__(self, model: nn.Module, loss: LossFunction) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: Any) -> torch.Tensor:
        return self._loss(self.model, batch)


class LeadProbe(Probe, Protocol):
    """The probe that talks to the slot."""

    def send(self, message: Mapping[str, Any]) -> None: ...


class TeamProbe:
    """The probe of one rank: the lead reports, and what it hears all of them obey."""

    Stop = Stop

    def __init__(self, team: Team, config: ProbeConfig, lead: LeadProbe | None, tokens_per_sample: int | None) -> None:
        batch_size = int(config.parameters.get("batch_size", 1))
        self._team, self._lead = team, lead
        self._is_timed = config.fidelity.axis == "seconds"
        self._horizon = Horizon.of(config.fidelity, batch_size, tokens_per_sample)

    @property
    def steps(self) -> int:
        return self._horizon.steps

    def due(self, step: int) -> bool:
        if not self._is_timed:
            return self._horizon.due(step)
        return self._team.from_lead(lambda: self._lead is not None and self._lead.due(step))

    def report(self, *, step: int, **metrics: float) -> None:
        told = self._team.from_lead(lambda: self._ask(step, metrics))
        if told is not None:
            kind, reason = told
            raise Pause(reason) if kind == "pause" else Stop(reason)

    def send(self, message: Mapping[str, Any]) -> None:
        """Say something that is not answered; the lead says it."""
        if self._lead is not None:
            self._lead.send(message)

    def _ask(self, step: int, metrics: dict[str, float]) -> tuple[str, str] | None:
        assert self._lead is not None
        try:
            self._lead.report(step=step, **metrics)
        except Stop as stop:
            return ("pause" if isinstance(stop, Pause) else "stop"), stop.reason
        return None
