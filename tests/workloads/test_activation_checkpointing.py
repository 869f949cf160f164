"""Activations that are computed again: the same numbers, the right parts of a model, less memory (as predicted)."""

from __future__ import annotations

import contextlib
import copy
import random
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from bench.fit import allocator_peak, configuration, in_child
from tests.tuner.memory_classes import Deep
from tests.workloads.support import RecordingProbe, TinyWorkload, config_for, probe_for
from workloads.activation_checkpointing import blocks, checkpoint_blocks
from workloads.bytelm import ByteLM
from workloads.contract import Pause
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


def test_a_paused_run_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    def reports(pause_after: int | None = None, **folders: str) -> list[tuple[int, dict[str, float]]]:
        derived = {"micro_batch": 8, "accumulation": 2, "checkpointing": True}
        config = config_for(maximum=80, precision="fp16", derived=derived, dropout=0.3)
        probe = probe_for(config, pause_after=pause_after)
        with contextlib.suppress(Pause):
            ByteLM().run(replace(config, **folders), probe)  # type: ignore[arg-type]
        return probe.reports

    unbroken = reports()
    first = reports(pause_after=2, checkpoint_dir=str(tmp_path))

    assert len(first) == 2
    assert first + reports(resume_dir=str(tmp_path)) == unbroken


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
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 1), 2, enable_nested_tensor=False), 2),
    ],
)
def test_what_repeats_is_computed_again(model: nn.Module, expected: int) -> None:
    assert len(blocks(model)) == expected


def compiled() -> nn.Module:
    module: object = torch.compile(nn.Sequential(layers(), layers()), backend="eager")
    assert isinstance(module, nn.Module)
    return module


def test_what_is_compiled_is_left_as_it_is() -> None:
    by_method = nn.Sequential(layers(), layers())
    by_method.compile(backend="eager")
    assert [checkpoint_blocks(compiled()), checkpoint_blocks(by_method)] == [0, 0]

    half = nn.Sequential(compiled(), layers(), layers())
    assert checkpoint_blocks(nn.Sequential(half)) == 3, "round the compiled one is a block like any other"


class Linear(TinyWorkload):
    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Linear(6, 2)


class SayingProbe(RecordingProbe):
    said: ClassVar[list[Mapping[str, Any]]] = []

    def send(self, message: Mapping[str, Any]) -> None:
        self.said.append(message)


def test_it_is_said_where_there_is_nothing_to_compute_again() -> None:
    config = config_for(maximum=64, derived={"checkpointing": True})
    probe = SayingProbe(probe_for(config).horizon)
    Linear().run(config, probe)
    [said] = [message["text"] for message in probe.said if message.get("name") == "no_checkpointing"]
    assert "no list or sequence of modules" in said


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


class Block(nn.Module):
    """Also the base of blocks that change something in passing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer: nn.Module = nn.Linear(4, 4)
        self.calls = 0
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data + F.dropout(torch.relu(self.layer(data - self.seen)), 0.2, self.training)


class Statistics(Block):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.seen.mul_(0.9).add_(0.1 * data.detach().mean(0))
        return super().forward(data)


class NewStatistics(Block):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + 0.1 * data.detach().mean(0)
        return super().forward(data)


class Counting(Block):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(data) * self.calls


class InPlace(Block):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return super().forward(data.mul_(0.5))


class Skipping(Block):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data if random.random() < 0.5 else super().forward(data)


class SpectralNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        spectral_norm(self.layer)


class BatchNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


class Scripted(Block):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # in use all the same
            self.layer = torch.jit.script(nn.Linear(4, 4))


class Unassignable(Block):
    def __setattr__(self, name: str, value: torch.Tensor | nn.Module) -> None:
        assert name != "__class__"
        super().__setattr__(name, value)


class Known:
    """Does not like to be derived from."""

    def __init_subclass__(cls, *, name: str) -> None:
        assert name


class Derived(Block, Known, name="derived"): ...


class Refusing(nn.Sequential):
    """As Hugging Face's models of an architecture that cannot."""

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: object = None) -> None:
        raise ValueError(f"no gradient checkpointing {gradient_checkpointing_kwargs}")


def shared() -> nn.Module:
    block = Block()
    return nn.Sequential(nn.Sequential(block, Block()), nn.Sequential(block, Block()))


@pytest.mark.parametrize(
    "make",
    [
        *(
            lambda kind=kind: nn.Sequential(nn.Linear(4, 4), kind(), kind())
            for kind in (
                Block,
                Statistics,
                NewStatistics,
                Counting,
                InPlace,
                Skipping,
                SpectralNorm,
                BatchNorm,
                Scripted,
            )
        ),
        lambda: nn.Sequential(Unassignable(), Unassignable()),
        lambda: nn.Sequential(Derived(), Derived()),
        lambda: Refusing(Block(), Block()),
        shared,
    ],
)
def test_whatever_blocks_do_the_numbers_are_the_same(make: Callable[[], nn.Module]) -> None:
    def losses(checkpointing: bool) -> list[float]:
        torch.manual_seed(0)
        random.seed(0)
        model = make()
        if checkpointing:
            assert checkpoint_blocks(model) >= 2
        optimizer, found = torch.optim.SGD(model.parameters(), 0.1), list[float]()
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(float(loss.detach()))
        return [*found, *(float(buffer.sum()) for buffer in model.buffers())]

    assert losses(True) == losses(False)
