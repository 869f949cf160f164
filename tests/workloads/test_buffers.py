"""Buffers that an evaluation writes, replaces or makes, and what training and a resumed run find of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.support import TinyWorkload, config_for, probe_for
from workloads.contract import Pause, ProbeConfig


class Remembering(nn.Module):
    """Multiplies by a buffer that changes in evaluations, in the way that `how` says."""

    seen: torch.Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 2)
        if how != "made":
            self.register_buffer("seen", torch.ones(8))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.first(inputs).relu()
        if not self.training:
            factor = hidden.mean() + 0.5
            if self.how == "written":
                self.seen.copy_(factor * self.seen)
            elif self.how == "made" and not hasattr(self, "seen"):
                self.register_buffer("seen", torch.full((8,), 2.0))
            else:
                self.seen = factor * (self.seen[:1] if self.how == "reshaped" else self.seen)
        elif hasattr(self, "seen"):
            self.seen.add_(0.01)
        made: torch.Tensor = self.last(hidden * getattr(self, "seen", 1.0))
        return made


class RememberingWorkload(TinyWorkload):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return Remembering(self.how)

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(F.cross_entropy(model(data[0]), data[1]))}


@pytest.mark.parametrize("how", ["written", "replaced", "reshaped", "made"])
def test_training_goes_on_with_what_an_evaluation_has_left_in_buffers_and_so_does_a_resumed_run(
    tmp_path: Path, how: str
) -> None:
    unbroken, first, second = (
        reports_of(how, config, pause_after)
        for config, pause_after in (
            (config_for(), None),
            (config_for(checkpoint_dir=str(tmp_path)), 2),
            (config_for(resume_dir=str(tmp_path)), None),
        )
    )

    assert [len(each) for each in (unbroken, first, second)] == [5, 2, 3]
    assert first + second == unbroken


def reports_of(how: str, config: ProbeConfig, pause_after: int | None) -> list[tuple[int, dict[str, float]]]:
    probe = probe_for(config, 4, pause_after)
    try:
        RememberingWorkload(how).run(config, probe)
    except Pause:
        assert pause_after
    return probe.reports
