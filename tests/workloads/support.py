"""What the tests of this folder share: a probe that records, configurations, and a tiny trainable class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from workloads.batches import Data
from workloads.contract import Fidelity, Pause, Precision, ProbeConfig, Split
from workloads.horizon import Horizon
from workloads.manifest import Axis
from workloads.training import TrainingWorkload


@dataclass
class RecordingProbe:
    """Keeps what was reported; pauses the run after `pause_after` reports."""

    horizon: Horizon
    pause_after: int | None = None
    reports: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    @property
    def steps(self) -> int:
        return self.horizon.steps

    def due(self, step: int) -> bool:
        return self.horizon.due(step)

    def report(self, *, step: int, **metrics: float) -> None:
        self.reports.append((step, metrics))
        self.horizon.resume(step, self.horizon.position(step))
        if len(self.reports) == self.pause_after:
            raise Pause("paused")

    def values(self, name: str) -> list[float]:
        return [metrics[name] for _, metrics in self.reports]

    def indices(self) -> list[int]:
        fidelity = self.horizon.fidelity
        return [fidelity.index(metrics.get(fidelity.axis, step)) for step, metrics in self.reports]


def probe_for(
    config: ProbeConfig,
    tokens_per_sample: int | None = None,
    pause_after: int | None = None,
    clock: Callable[[], float] | None = None,
) -> RecordingProbe:
    batch_size = int(config.parameters["batch_size"])
    if clock:
        return RecordingProbe(Horizon.of(config.fidelity, batch_size, tokens_per_sample, clock), pause_after)
    return RecordingProbe(Horizon.of(config.fidelity, batch_size, tokens_per_sample), pause_after)


def config_for(
    *,
    axis: Axis = "samples",
    maximum: float = 320,
    reports: int = 5,
    seed: int = 3,
    precision: Precision = "fp32",
    split: Split = "validation",
    resume_dir: str | None = None,
    resume_at: Mapping[str, Any] | None = None,
    checkpoint_dir: str | None = None,
    derived: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> ProbeConfig:
    return ProbeConfig(
        parameters={"lr": 0.01, "batch_size": 16, **parameters},
        derived=derived or {},
        seed=seed,
        fidelity=Fidelity(axis, maximum, reports),
        device="cpu",
        precision=precision,
        trial=0,
        job_id="job",
        split=split,
        resume_dir=resume_dir,
        resume_at=resume_at,
        checkpoint_dir=checkpoint_dir,
    )


class TinyWorkload(TrainingWorkload):
    """A dense network with dropout and a norm on 100 fixed random rows; as small as the loop allows."""

    tokens_per_sample = 4

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(140, 6, generator=generator)
        labels = (features.sum(1) > 0).long()
        self.rows = (features[:100], labels[:100])
        self.held_out = (features[100:120], labels[100:120])
        self.test_rows = (features[120:], labels[120:])
        self.last_model: nn.Module | None = None
        self.batches: list[torch.Tensor] = []

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        dropout = float(config.get("dropout", 0.0))
        self.last_model = nn.Sequential(
            nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 2)
        )
        return self.last_model

    def train_data(self) -> Data:
        return self.rows

    def eval_data(self) -> Data:
        return self.held_out

    def test_data(self) -> Data:
        return self.test_rows

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        features, labels = batch
        self.batches.append(features)
        return F.cross_entropy(model(features).float(), labels)

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        features, labels = data
        assert not model.training
        assert not torch.is_grad_enabled()
        return {"val_loss": float(F.cross_entropy(model(features).float(), labels))}
