"""The state of a run, in one dict in one file: write it, kill the process, go on from it, get the same numbers."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from workloads.optimizers import Clip
from workloads.precision import MixedPrecision
from workloads.team import Team

STATE_FILE = "state.pt"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything of a run that changes while it trains. `folder` None: nothing is kept.

    The place in the data follows from the step (see `batches.Order`). Of the random generators torch's and Python's
    are kept, each rank's own, NumPy's are not. Of a team all have to call, and the lead writes; it has to be read by as
    many.
    """

    folder: str | None
    model: nn.Module
    optimizer: torch.optim.Optimizer
    precision: MixedPrecision
    clip: Clip
    team: Team

    def save(self, step: int, position: float) -> None:
        """Write to a temporary name, then move: a reader finds the old state or the new one."""
        if self.folder is None:
            return
        random_states = self.team.gathered(_random_state())
        if not self.team.is_lead:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.precision.state_dict(),
            "largest_norm": self.clip.largest_norm,
            "step": step,
            "position": position,
            "random": random_states,
        }
        path = Path(self.folder) / STATE_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{STATE_FILE}.{os.getpid()}.tmp")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, device: torch.device) -> tuple[int, float] | None:
        """Put the saved state back; returns its step and position, None where none was saved."""
        if self.folder is None or not (path := Path(self.folder) / STATE_FILE).exists():
            return None
        state = torch.load(path, map_location=device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.precision.load_state_dict(state["precision"])
        self.clip.largest_norm = state["largest_norm"]
        _set_random_state(state["random"][self.team.rank])
        return int(state["step"]), float(state["position"])


def _random_state() -> dict[str, Any]:
    cuda = [torch.cuda.get_rng_state(i) for i in range(torch.cuda.device_count())] if _is_cuda_used() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": random.getstate()}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"].cpu())
    for i, each in enumerate(state["cuda"]):
        torch.cuda.set_rng_state(each.cpu(), i)
    random.setstate(state["python"])


def _is_cuda_used() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
