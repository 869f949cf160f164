"""What a run tells of itself: updates, clipping, jumps, waiting, noise."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from tests.workloads.support import TinyWorkload, config_for, probe_for
from tests.workloads.test_loss_scale import TalkingProbe
from workloads.batches import Data
from workloads.health import RECENT, Health
from workloads.noise import NoiseScale, trade
from workloads.settings import Settings


def health_of(parameters: list[nn.Parameter] | None = None, **settings: Any) -> Health:
    return Health(parameters or [nn.Parameter(torch.ones(4))], Settings.of(config_for(**settings)))


def test_the_update_ratio_is_the_norm_of_the_update_over_that_of_the_weights() -> None:
    parameters = [nn.Parameter(torch.ones(3, 5)), nn.Parameter(torch.ones(20_000))]
    health = health_of(parameters)
    health.before_update(3)
    with torch.no_grad():
        torch._foreach_mul_(list[torch.Tensor](parameters), 0.99)
    health.after_update(is_skipped=False)
    assert health.report()["update_ratio"] == pytest.approx(0.01, rel=1e-3)


def test_a_skipped_step_is_no_update() -> None:
    health = health_of()
    health.before_update(3)
    health.after_update(is_skipped=True)
    assert "update_ratio" not in health.report()


def test_clipped_steps_and_jumps_of_the_norm_are_counted() -> None:
    health = health_of()
    for _ in range(RECENT):
        health.see_norm(1.0, 2.0)
    health.see_norm(9.0, 2.0)
    health.see_norm(3.0, 2.0)
    health.see_norm(float("inf"), 2.0)
    assert (health.report()["norm_jumps"], health.report()["clip_share"]) == (1.0, 2 / (RECENT + 3))


def test_the_noise_scale_of_known_noise_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    signal, deviation, dimensions = 0.5, 2.0, 200
    noise = NoiseScale()
    for _ in range(400):
        samples = signal + deviation * torch.randn(64, dimensions, generator=generator)
        noise.add(8, float(samples[:8].mean(0).norm()), 64, float(samples.mean(0).norm()))
    assert noise.samples == pytest.approx(deviation**2 / signal**2, rel=0.1)


def test_gradients_that_are_all_noise_have_no_noise_scale() -> None:
    noise = NoiseScale()
    for _ in range(3):
        noise.add(1, 8.0, 64, 1.0)
    assert noise.samples is None
    assert trade(32, 64.0) == {"steps_factor": 3.0, "samples_factor": 1.5}


@pytest.mark.parametrize("derived", [{}, {"micro_batch": 8, "accumulation": 4}], ids=["aside", "micro-batches"])
def test_both_ways_of_measuring_find_about_the_same_noise(derived: dict[str, int]) -> None:
    config = config_for(maximum=32 * 2000, batch_size=32, lr=1e-6, derived=derived)
    probe = probe_for(config, 4)
    TinyWorkload().run(config, probe)
    assert probe.values("noise_scale")[-1] == pytest.approx(9, rel=0.4)


class Picky(TinyWorkload):
    """Cannot do with fewer samples than it was promised."""

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        if len(batch[0]) < 16:
            raise ValueError("too few")
        return super().loss(model, batch)


def test_a_loss_that_cannot_do_with_fewer_samples_trains_without_a_noise_scale() -> None:
    probe = probe_for(config_for(), 4)
    Picky().run(config_for(), probe)
    assert "noise_scale" not in probe.reports[-1][1]


class SlowData(TinyWorkload):
    """Every batch takes a while to come."""

    def train_data(self) -> Data:
        return Slow(self.rows)


class Slow:
    def __init__(self, rows: tuple[torch.Tensor, torch.Tensor]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows[0])

    def __getitem__(self, index: int, /) -> Any:
        time.sleep(0.002)
        return tuple(part[index] for part in self._rows)


def test_waiting_for_data_is_told_as_a_share_of_the_training_time() -> None:
    def wait(workload: TinyWorkload) -> float:
        config = config_for()
        probe = TalkingProbe(probe_for(config, 4).horizon)
        workload.run(config, probe)
        values: Mapping[str, float] = probe.said[-1]["values"]
        return values["data_wait"]

    assert wait(SlowData()) > 0.7
    assert wait(TinyWorkload()) < 0.5
