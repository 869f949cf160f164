"""Activations and attention on request: what is measured, that the run does not notice, and what a diagnosis says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.support import TinyWorkload, config_for, probe_for
from tests.workloads.test_loss_scale import TalkingProbe
from workloads import activations, checks_run
from workloads.activations import look
from workloads.batches import Data
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


class Statistics(nn.Module):
    """Puts a new tensor in the place of its buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + data.mean(0)
        return torch.as_tensor(self.layer(data))


def test_a_buffer_that_is_replaced_is_the_old_one_afterwards() -> None:
    model = Statistics()
    before = model.seen
    look(model, lambda: model(torch.ones(3, 2)))
    assert model.seen is before


def nested() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3, 2, 4), torch.ones(5, 2, 4)], layout=torch.jagged).transpose(1, 2)


@pytest.mark.parametrize(
    ("shapes", "how", "calls"),
    [
        (((5, 4), (5, 4)), {}, 1),
        (((1, 5, 4), (6, 5, 4)), {}, 1),
        (((2, 1, 5, 4), (2, 3, 5, 4)), {}, 1),
        (((2, 4, 5, 4), (2, 2, 5, 4)), {"enable_gqa": True}, 1),
        (((6, 5, 4), (6, 5, 4)), {"attn_mask": torch.ones(6, 1, 5, dtype=torch.bool)}, 1),
        (None, {}, 0),  # cannot be said of nested ones
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_attention_of_any_shape_that_torch_takes_is_looked_at_or_passed_over(
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None, how: dict[str, Any], calls: int
) -> None:
    query, key = (nested(), nested()) if shapes is None else (torch.zeros(shapes[0]), torch.zeros(shapes[1]))
    found = look(nn.Linear(1, 1), lambda: F.scaled_dot_product_attention(query, key, key, **how))["attention"]
    assert found == [pytest.approx({"entropy": 1.0, "max_logit": 0.0})] * calls


def test_of_a_long_sequence_some_queries_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "LOGITS", 8 * 32)
    query = torch.zeros(1, 1, 32, 4)
    key = query.clone()
    key[..., -1, :] = 100.0
    query[..., -8:, :] = 1.0  # every fourth is looked at: of these two, to which the last place is masked
    for how in ({"attn_mask": torch.ones(32, 32, dtype=torch.bool).tril(-1)}, {"is_causal": True}):
        attend = partial(F.scaled_dot_product_attention, query, key, key, **how)
        assert look(nn.Linear(1, 1), attend)["attention"] == [pytest.approx({"entropy": 1.0, "max_logit": 0.0})]


class Odd(nn.Module):
    """A layer that gives something else than a dense tensor."""

    def __init__(self, give: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.give = give

    def forward(self, data: torch.Tensor) -> Any:
        return self.give(data)


def scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # in use all the same
        script: nn.Module = torch.jit.script(nn.Sequential(nn.ReLU()))
    return script


@pytest.mark.parametrize(
    "layer",
    [
        Odd(torch.Tensor.to_sparse),
        Odd(lambda data: data.to("meta")),
        Odd(lambda data: torch.nested.nested_tensor([data], layout=torch.jagged)),
        Odd(lambda _: None),
        scripted(),
    ],
    ids=["sparse", "meta", "nested", "nothing", "script"],
)
def test_what_cannot_be_looked_at_is_passed_over(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), layer)
    assert list(look(model, lambda: model(torch.ones(3, 2)))["layers"]) == ["0"]


class Row(NamedTuple):
    features: dict[str, torch.Tensor]
    label: torch.Tensor


class TakingOut(TinyWorkload):
    """Its batches are named tuples, and its loss takes out of them what it needs."""

    def train_data(self) -> Data:
        assert isinstance(self.rows, tuple)
        return [Row({"x": features}, label) for features, label in zip(*self.rows, strict=True)]

    def loss(self, model: nn.Module, batch: Row, /) -> torch.Tensor:
        return F.cross_entropy(model(batch.features.pop("x")).float(), batch.label)


def test_a_loss_may_take_out_of_a_batch_what_it_needs() -> None:
    config = replace(config_for(), activations=True)
    probe = TalkingProbe(probe_for(config).horizon)
    train(TakingOut(), config, probe)
    assert len(probe.reports) == 5


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
