"""Activations that are computed again: the same numbers, the right parts of a model, less memory (as predicted)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.fit import allocator_peak, configuration, in_child
from tests.tuner.memory_classes import Deep
from tests.workloads.support import config_for, probe_for
from workloads.activation_checkpointing import blocks, checkpoint_blocks
from workloads.bytelm import ByteLM
from workloads.digits import DigitsCNN
from workloads.memory_prediction import predict
from workloads.training import TrainingWorkload


@pytest.mark.parametrize(
    ("kind", "precision"), [(ByteLM, "fp32"), (ByteLM, "fp16"), (DigitsCNN, "fp32"), (DigitsCNN, "bf16")]
)
def test_the_numbers_are_the_same(kind: Callable[[], TrainingWorkload], precision: str) -> None:
    def reports(checkpointing: bool) -> list[tuple[int, dict[str, float]]]:
        derived = {"micro_batch": 8, "accumulation": 2, "checkpointing": checkpointing}
        config = config_for(maximum=160, derived=derived, dropout=0.3)
        config = replace(config, precision=precision)  # type: ignore[arg-type]
        probe = probe_for(config)
        kind().run(config, probe)
        return probe.reports

    assert reports(True) == reports(False)


def test_it_takes_less_and_as_much_as_predicted() -> None:
    plain = configuration(2, 2)
    config = replace(plain, derived={**plain.derived, "checkpointing": True})
    without = in_child(lambda: predict(Deep(), plain).training_bytes)
    predicted = in_child(lambda: predict(Deep(), config).training_bytes)
    true = in_child(lambda: allocator_peak(Deep(), config))
    assert predicted < 0.2 * without
    assert predicted == pytest.approx(true, rel=0.01)


def layers(kind: type[nn.Module] = nn.LayerNorm) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), kind(4), nn.ReLU())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Linear(4, 4), 0),
        (layers(), 1),
        (nn.Sequential(layers(), layers(), nn.Linear(4, 4)), 2),
        (nn.ModuleDict({"body": nn.ModuleList([layers(), layers(), layers()]), "head": nn.Linear(4, 4)}), 3),
        (nn.Sequential(nn.Sequential(layers(), layers()), nn.Linear(4, 4)), 2),
        (nn.Sequential(layers(), layers(nn.BatchNorm1d)), 1),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 2, enable_nested_tensor=False), 2),
    ],
)
def test_what_repeats_is_computed_again_but_not_what_counts_batches(model: nn.Module, expected: int) -> None:
    assert len(blocks(model)) == expected


def test_names_and_copies_stay() -> None:
    model = nn.Sequential(layers(), layers())
    names = list(model.state_dict())
    assert checkpoint_blocks(model) == 2
    twin = copy.deepcopy(model)
    assert list(twin.state_dict()) == names
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    data = torch.ones(2, 4)
    assert not torch.equal(twin(data), model(data))  # its blocks are its own


def test_a_model_that_can_do_it_itself_is_asked() -> None:
    class Own(nn.Linear):
        asked = False

        def gradient_checkpointing_enable(self) -> None:
            self.asked = True

    model = Own(2, 2)
    checkpoint_blocks(model)
    assert model.asked
