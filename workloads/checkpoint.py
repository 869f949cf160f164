"""The state of a run, in one dict in one file: write it, end the process, go on from it, get the same numbers."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workloads.buffers import layout, layouts, put_buffers
from workloads.contract import CheckpointError
from workloads.health import Health
from workloads.optimizers import Clip
from workloads.precision import MixedPrecision
from workloads.team import Team

STATE_FILE = "state.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything of a run that changes while it trains.

    The place in the data follows from the step (see `batches.Order`). Of the random generators torch's, Python's and
    NumPy's global one are kept, each rank's own; generators that a class makes for itself, and whatever else it keeps
    between batches, are not. Of a team all have to call, and the lead writes; it has to be read by as many.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: MixedPrecision
    clip: Clip
    health: Health
    team: Team

    def save(self, folder: str | None, step: int, position: float) -> None:
        """Write to a temporary name, then move: a reader finds the whole state or none."""
        if folder is None:
            raise CheckpointError("this run was told to pause, and it has no checkpoint_dir to leave its state in")
        random_states = self.team.gathered(_random_state())
        if not self.team.is_lead:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
            "largest_norm": self.clip.largest_norm,
            "health": self.health.state_dict(),
            "step": step,
            "position": position,
            "random": random_states,
        }
        path = Path(folder) / STATE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{STATE_FILE}.{os.getpid()}.tmp")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, folder: str, expected: Mapping[str, Any] | None = None) -> tuple[int, float]:
        """Put the saved state back; returns its step and position.

        Raises CheckpointError where there is none, where it cannot be read, and where its step is not the one of
        `expected`.
        """
        path = Path(folder) / STATE_FILE
        try:  # to the host, so that a GPU never holds the state twice; what is put back goes where the model is
            state = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # of a file that is cut short torch raises whatever comes up
            raise CheckpointError(f"the checkpoint {path} cannot be read: {type(error).__name__}: {error}") from error
        if expected is not None and state["step"] != expected["step"]:
            raise CheckpointError(f"the checkpoint {path} is of step {state['step']}, not of step {expected['step']}")
        _make_room(self.model, state["model"])
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["precision"])
        self.clip.largest_norm = state["largest_norm"]
        self.health.load_state_dict(state["health"])
        _set_random_state(state["random"][self.team.rank])
        return int(state["step"]), float(state["position"])


def _make_room(model: nn.Module, state: Mapping[str, Any]) -> None:
    """For what was in buffers that the run had made, or given another shape."""
    known = layouts(model) | {name: layout(parameter) for name, parameter in model.named_parameters()}
    kept = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    put_buffers(model, {name: value for name, value in kept.items() if known.get(name) != layout(value)})


def seed_everything(seed: int) -> None:
    """Seed torch, Python and, where the workload uses it, NumPy's global generator."""
    torch.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def _random_state() -> dict[str, Any]:
    cuda = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())] if _is_cuda_used() else []
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (str(name), [int(key) for key in keys], *rest)  # nothing of NumPy's: read as weights only
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    for i, each in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(each.cpu(), i)
    random.setstate(state["python"])
    if "numpy" in state:
        import numpy

        numpy.random.set_state(state["numpy"])


def _is_cuda_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
