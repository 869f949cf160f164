"""Activations and attention on request: what is measured, that the run does not notice, and what a diagnosis says."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.support import TinyWorkload, config_for, probe_for
from tests.workloads.test_loss_scale import TalkingProbe
from workloads import checks_run
from workloads.activations import look
from workloads.training import train


class Attention(nn.Module):
    """Attention over three places whose keys are all alike, or of which the last is a thousand times the others."""

    def __init__(self, weight: float, **how: Any) -> None:
        super().__init__()
        self.weight, self.how = nn.Parameter(torch.tensor(weight)), how

    def forward(self) -> torch.Tensor:
        query = torch.ones(2, 1, 3, 4)
        key = torch.ones(2, 1, 3, 4) * torch.tensor([1.0, 1.0, float(self.weight.detach())]).reshape(3, 1)
        return F.scaled_dot_product_attention(query, key, key, **self.how)


def test_size_zeros_and_dead_units_of_each_layer_are_told() -> None:
    layer = nn.Linear(2, 4)
    model = nn.Sequential(layer, nn.ReLU(), nn.Dropout(0.5))
    layer.weight = nn.Parameter(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
    layer.bias = nn.Parameter(torch.tensor([0.0, -1.0, -1.0, -1.0]))
    seen = look(model, lambda: model(torch.tensor([[1.0, 1.0], [3.0, 0.0]])))["layers"]
    assert seen["1"] == pytest.approx({"rms": math.sqrt((1 + 1 + 9 + 4) / 8), "zeros": 0.5, "dead": 0.5})
    assert set(seen) == {"0", "1"}


def test_channels_are_the_units_of_images() -> None:
    layer = nn.Conv2d(1, 2, 1, bias=False)
    model = nn.Sequential(layer, nn.ReLU())
    layer.weight = nn.Parameter(torch.tensor([1.0, -1.0]).reshape(2, 1, 1, 1))
    assert look(model, lambda: model(torch.ones(3, 1, 2, 2)))["layers"]["1"]["dead"] == 0.5


@pytest.mark.parametrize(
    ("weight", "how", "entropy", "max_logit"),
    [
        (1.0, {}, 1.0, 2.0),
        (1000.0, {}, 0.0, 2000.0),
        (1000.0, {"is_causal": True}, 0.5, 2000.0),  # the second place sees two that are alike
        (1.0, {"attn_mask": torch.tensor([[True, True, False]] * 3)}, 1.0, 2.0),
        (1.0, {"scale": 1.0}, 1.0, 4.0),
    ],
)
def test_the_entropy_of_attention_is_a_share_of_the_most_that_it_can_be(
    weight: float, how: dict[str, Any], entropy: float, max_logit: float
) -> None:
    model = Attention(weight, **how)
    (call,) = look(model, model)["attention"]
    assert call == pytest.approx({"entropy": entropy, "max_logit": max_logit}, abs=1e-6)


def run(*, asked: bool) -> TalkingProbe:
    config = replace(config_for(dropout=0.3), activations=asked)
    probe = TalkingProbe(probe_for(config).horizon)
    train(TinyWorkload(), config, probe)
    return probe


def test_they_are_told_with_each_report_on_request_and_change_no_number_of_the_run() -> None:
    with_them, without = run(asked=True), run(asked=False)
    told = [message["values"] for message in with_them.said if "activations" in message.get("values", {})]
    assert len(told) == len(with_them.reports)
    assert 0 < told[-1]["activations"]["layers"]["2"]["zeros"] < 1
    assert with_them.reports == without.reports
    assert not any("activations" in message.get("values", {}) for message in without.said)


@pytest.mark.parametrize(
    ("seen", "level", "code"),
    [
        ({"layers": {"relu": {"rms": 0.1, "zeros": 1.0, "dead": 1.0}}, "attention": []}, "warning", "dead_units"),
        ({"layers": {}, "attention": [{"entropy": 0.0, "max_logit": 900.0}]}, "warning", "attention_is_narrow"),
        ({"layers": {}, "attention": [{"entropy": 0.0, "max_logit": None}]}, "ok", "activations"),
        ({"layers": {"relu": {"rms": 0.1, "zeros": 0.6, "dead": 0.2}}, "attention": []}, "ok", "activations"),
        (None, "skipped", "activations"),
    ],
)
def test_a_diagnosis_warns_of_units_that_are_dead_and_of_attention_that_sees_one_place(
    seen: Any, level: str, code: str
) -> None:
    run: Any = SimpleNamespace(probe=SimpleNamespace(said={} if seen is None else {"activations": seen}))
    verdict = checks_run.activations_are_alive(run)
    assert (verdict.level, verdict.code) == (level, code)
