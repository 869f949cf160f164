"""What the predictor says against what torch's CPU allocator really gives out."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.fit import allocator_peak, configuration, in_child
from tests.workloads.support import TinyWorkload
from workloads.batches import Data
from workloads.bytelm import ByteLM
from workloads.contract import Precision
from workloads.digits import DigitsCNN
from workloads.memory_prediction import predict
from workloads.memory_tracker import MemoryTracker

MIB = 1 << 20


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(("micro_batch", "accumulation"), [(8, 2), (48, 1)])
def test_the_peak_of_a_transformer_is_predicted_within_one_percent(
    precision: Precision, micro_batch: int, accumulation: int
) -> None:
    config = configuration(micro_batch, accumulation, precision)
    predicted = in_child(lambda: predict(ByteLM(), config).peak_bytes)
    true = in_child(lambda: allocator_peak(ByteLM(), config))
    assert predicted == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adafactor", "lamb"])
def test_the_peak_is_predicted_within_one_percent_with_every_optimizer(optimizer: str) -> None:
    plain = configuration(8, 1, "fp32")
    config = replace(plain, parameters={**plain.parameters, "optimizer": optimizer})
    predicted = in_child(lambda: predict(ByteLM(), config).peak_bytes)
    true = in_child(lambda: allocator_peak(ByteLM(), config))
    assert predicted == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize(
    ("micro_batch", "accumulation", "precision"), [(8, 2, "fp32"), (512, 1, "fp32"), (512, 2, "bf16")]
)
def test_the_peak_of_a_convolutional_network_is_predicted_within_two_percent(
    micro_batch: int, accumulation: int, precision: Precision
) -> None:
    config = configuration(micro_batch, accumulation, precision)
    predicted = in_child(lambda: predict(DigitsCNN(), config).peak_bytes)
    true = in_child(lambda: allocator_peak(DigitsCNN(), config))
    assert predicted == pytest.approx(true, rel=0.02)


class Giant(TinyWorkload):
    """8 GiB of weights and 1 GiB of evaluation data: what cannot be tried here can still be predicted."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 1 << 15), nn.Linear(1 << 15, 1 << 16), nn.Linear(1 << 16, 2))

    def eval_data(self) -> Data:
        return self.rows


def test_a_prediction_allocates_nothing_of_what_it_predicts() -> None:
    def predicted_and_own_mib() -> int:
        before = resident_bytes()
        prediction = predict(Giant(), configuration(8, 1))
        assert resident_bytes() - before < 512 * MIB
        return prediction.peak_bytes

    assert in_child(predicted_and_own_mib) > 4 * (8 << 30)  # weights, gradients, two moments


def test_training_and_evaluation_are_told_apart() -> None:
    small, large = predict(DigitsCNN(), configuration(4, 1)), predict(DigitsCNN(), configuration(512, 1))
    assert small.evaluation_bytes == pytest.approx(large.evaluation_bytes, rel=0.1)  # the last batch is still held
    assert small.training_bytes < small.evaluation_bytes < large.training_bytes


def test_the_line_through_four_and_eight_meets_a_large_batch() -> None:
    four, eight, large = (predict(ByteLM(), configuration(m, 1)).training_bytes for m in (4, 8, 256))
    slope = (eight - four) / 4
    assert four + slope * 252 == pytest.approx(large, rel=0.02)


def test_the_tracker_counts_a_view_once_and_forgets_what_is_freed() -> None:
    with MemoryTracker() as tracker:
        first = torch.zeros(1000)
        view = first[10:]
        assert tracker.bytes == 4000
        second = view + 1
        assert tracker.peak_bytes == 4000 + 3960
        del first, second
        assert tracker.bytes == 4000
        del view
        assert tracker.bytes == 0
        assert tracker.take_peak() == 4000 + 3960
        assert tracker.peak_bytes == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Encoder(TinyWorkload):
    """A layer of torch's transformer, which evaluates in one kernel of its own, on much data."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True, norm_first=True)

    def train_data(self) -> Data:
        return torch.zeros(64, 32, 64)

    def eval_data(self) -> Data:
        return torch.zeros(600, 32, 64)

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        loss: torch.Tensor = model(batch).square().mean()
        return loss

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": float(self.loss(model, data))}


def test_an_evaluation_in_one_kernel_is_not_foretold_too_low() -> None:
    config = configuration(4, 1, "fp32")
    predicted = in_child(lambda: predict(Encoder(), config).evaluation_bytes)
    true = in_child(lambda: allocator_peak(Encoder(), config))
    assert true <= predicted <= 1.5 * true
