"""The training loop: accumulation, clip, decay, precision, divergence, resume."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.workloads.support import RecordingProbe, TinyWorkload, config_for, probe_for
from workloads.batches import Data, Order, take
from workloads.contract import CheckpointError, Diverged, Pause, ProbeConfig
from workloads.optimizers import Clip, build_optimizer, decay_groups
from workloads.precision import SKIPS_AT_FLOOR, MixedPrecision
from workloads.settings import Settings
from workloads.training import train


def run(config: ProbeConfig, workload: TinyWorkload | None = None, pause_after: int | None = None) -> RecordingProbe:
    probe = probe_for(config, 4, pause_after)
    try:
        (workload or TinyWorkload()).run(config, probe)
    except Pause:
        assert pause_after
    return probe


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    first, again, other = (run(config_for(dropout=0.3, seed=seed)).reports for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_training_lowers_the_loss() -> None:
    losses = run(config_for(maximum=1600)).values("val_loss")
    assert losses[-1] < losses[0] / 2


def test_reports_say_how_far_the_run_is() -> None:
    assert run(config_for()).reports[0][0] == 4
    assert run(config_for()).values("samples") == [64, 128, 192, 256, 320]
    assert run(config_for()).values("tokens") == [256, 512, 768, 1024, 1280]


def test_accumulation_equals_one_large_batch() -> None:
    whole = run(config_for(derived={"micro_batch": 16, "accumulation": 1}))
    parts = run(config_for(derived={"micro_batch": 4, "accumulation": 4}))
    assert parts.values("val_loss") == pytest.approx(whole.values("val_loss"), rel=1e-4)
    assert parts.values("train_loss") == pytest.approx(whole.values("train_loss"), rel=1e-4)


def test_a_batch_that_does_not_divide_is_an_error() -> None:
    with pytest.raises(ValueError, match="micro_batch 5 x accumulation 3 x processes 1 is not batch_size 16"):
        Settings.of(config_for(derived={"micro_batch": 5}))


def test_each_epoch_sees_every_sample_once_in_a_new_order() -> None:
    order = Order(10, seed=1)
    first, second = order.indices(0, 10).tolist(), order.indices(10, 10).tolist()
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_a_batch_may_span_epochs_and_does_not_depend_on_how_it_is_cut() -> None:
    order, other = Order(10, seed=1), Order(10, seed=1)
    assert order.indices(7, 8).tolist() == [*other.indices(7, 3).tolist(), *other.indices(10, 5).tolist()]


def test_biases_and_norms_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv2d(1, 2, 3))
    decayed, plain = decay_groups(model, 0.1)
    assert [p.ndim for p in decayed["params"]] == [2, 4]
    assert [p.ndim for p in plain["params"]] == [1, 1, 1, 1]
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)


def test_frozen_tensors_are_left_out() -> None:
    model = nn.Linear(3, 4)
    model.weight.requires_grad_(False)
    assert [len(group["params"]) for group in decay_groups(model, 0.1)] == [0, 1]


def test_a_norm_over_several_axes_does_not_decay_either() -> None:
    decayed, plain = decay_groups(nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm([2, 4, 4])), 0.1)
    assert [len(group["params"]) for group in (decayed, plain)] == [1, 3]


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adafactor", "Lamb"])
def test_the_optimizer_takes_its_parameters(name: str) -> None:
    settings = Settings.of(config_for(optimizer=name.lower(), beta1=0.8, beta2=0.95, eps=1e-6, momentum=0.7))
    optimizer = build_optimizer(nn.Linear(2, 2), settings)
    assert type(optimizer).__name__ == name
    if name in ("AdamW", "Lamb"):
        assert (optimizer.defaults["betas"], optimizer.defaults["eps"]) == ((0.8, 0.95), 1e-6)
    elif name == "SGD":
        assert optimizer.defaults["momentum"] == 0.7


def test_lamb_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'x5tune\[lamb\]'"):
        build_optimizer(nn.Linear(2, 2), Settings.of(config_for(optimizer="lamb")))


@pytest.mark.parametrize(("name", "lr"), [("sgd", 0.3), ("adafactor", 0.02), ("lamb", 0.05)])
def test_every_optimizer_trains(name: str, lr: float) -> None:
    losses = run(config_for(maximum=1600, optimizer=name, lr=lr)).values("train_loss")
    assert losses[-1] < losses[0] / 2


def parameter_with_gradient(*values: float) -> list[nn.Parameter]:
    parameter = nn.Parameter(torch.zeros(len(values)))
    parameter.grad = torch.tensor(values)
    return [parameter]


def clipped_norm(clip: Clip, progress: float, *values: float) -> float:
    parameters = parameter_with_gradient(*values)
    clip.apply(parameters, progress)
    gradient = parameters[0].grad
    assert gradient is not None
    return float(gradient.norm())


def test_a_norm_above_the_clip_is_brought_down_to_it_and_reported_as_it_was() -> None:
    clip = Clip(Settings.of(config_for(grad_clip=1.0)))
    assert clip.apply(parameter_with_gradient(3.0, 4.0), 0.5) == pytest.approx(5.0)
    assert clipped_norm(clip, 0.5, 3.0, 4.0) == pytest.approx(1.0, rel=1e-4)
    assert clipped_norm(clip, 0.5, 0.3, 0.4) == pytest.approx(0.5)


def test_without_a_clip_gradients_stay_as_they_are() -> None:
    clip = Clip(Settings.of(config_for(grad_clip=None)))
    assert clipped_norm(clip, 0.5, 30.0, 40.0) == pytest.approx(50.0)


def test_a_relative_clip_watches_first_and_then_clips_at_the_largest_norm() -> None:
    clip = Clip(Settings.of(config_for(grad_clip={"relative": 0.5})))
    assert clipped_norm(clip, 0.0, 6.0, 8.0) == pytest.approx(10.0)
    assert clipped_norm(clip, 0.04, 3.0, 4.0) == pytest.approx(5.0)
    assert clipped_norm(clip, 0.05, 30.0, 40.0) == pytest.approx(5.0, rel=1e-4)
    assert clip.largest_norm == pytest.approx(10.0)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_trains(precision: Any) -> None:
    probe = run(config_for(maximum=1600, precision=precision))
    losses = probe.values("val_loss")
    assert losses[-1] < losses[0] / 2
    assert ("loss_scale" in probe.reports[0][1]) == (precision == "fp16")


def test_a_given_loss_scale_is_where_it_starts() -> None:
    probe = run(config_for(axis="steps", maximum=60, reports=3, precision="fp16", derived={"loss_scale": 512}))
    assert probe.values("loss_scale") == [512, 512, 512]


def test_a_scale_that_overflows_skips_steps_comes_down_and_trains() -> None:
    probe = run(config_for(maximum=1600, precision="fp16", derived={"loss_scale": 2.0**18}, lr=0.02))
    assert probe.values("skipped_steps")[-1] >= 1
    assert probe.values("loss_scale")[-1] < 2.0**24
    assert math.isfinite(probe.values("val_loss")[-1])


def test_overflow_at_the_smallest_scale_is_divergence() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    precision = MixedPrecision("fp16", torch.device("cpu"), 4.0)
    steps = 0
    with pytest.raises(Diverged, match="smallest loss scale"):
        for steps in range(1, 100):
            precision.backward(model(torch.ones(1, 2)).sum() * math.inf)
            precision.unscale(optimizer)
            precision.step(optimizer, steps, is_overflown=True)
            optimizer.zero_grad()
    assert steps == 2 + SKIPS_AT_FLOOR


class PoisonedWorkload(TinyWorkload):
    """Its loss is not finite from the third batch on, or its gradient, or its metric."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        loss = super().loss(model, batch)
        if len(self.batches) < 3:
            return loss
        weight = next(model.parameters())
        return {"loss": loss * math.nan, "gradient": loss + torch.sqrt(weight - weight).sum(), "metric": loss}[
            self.what
        ]

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        return {"val_loss": math.inf} if self.what == "metric" else super().evaluate(model, data)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("loss", "training loss at step 3 is nan"),
        ("gradient", "gradient norm at step 3 is nan"),
        ("metric", "val_loss at step 4 is inf"),
    ],
)
def test_what_is_not_finite_ends_the_run_and_is_named(what: str, message: str) -> None:
    with pytest.raises(Diverged, match=message):
        run(config_for(), PoisonedWorkload(what))


def test_a_metric_that_is_not_finite_is_reported_before_the_run_ends() -> None:
    config = config_for()
    probe = probe_for(config, 4)
    with pytest.raises(Diverged):
        PoisonedWorkload("metric").run(config, probe)
    assert probe.values("val_loss") == [math.inf]


@pytest.mark.parametrize(
    "parameters",
    [
        {"dropout": 0.4},
        {"grad_clip": {"relative": 0.5}, "optimizer": "sgd"},
        {"optimizer": "adafactor"},
        {"optimizer": "lamb"},
        {"precision": "fp16", "derived": {"loss_scale": "auto", "micro_batch": 4, "accumulation": 4}},
        {"precision": "fp16", "loss_scale": 2.0**18},
    ],
    ids=["dropout", "relative-clip", "adafactor", "lamb", "fp16", "fp16-overflowing"],
)
@pytest.mark.parametrize("pause_after", [1, 3])
def test_a_paused_run_goes_on_with_the_same_numbers(
    tmp_path: Path, parameters: dict[str, Any], pause_after: int
) -> None:
    unbroken = run(config_for(**parameters))
    first = run(config_for(**parameters, checkpoint_dir=str(tmp_path)), pause_after=pause_after)
    torch.rand(7)  # a new process starts with other random numbers
    second = run(config_for(**parameters, resume_dir=str(tmp_path)))
    assert len(first.reports) == pause_after
    assert first.reports + second.reports == unbroken.reports


def test_a_paused_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    unbroken, resumed = TinyWorkload(), TinyWorkload()
    run(config_for(dropout=0.4), unbroken)
    run(config_for(dropout=0.4, checkpoint_dir=str(tmp_path)), pause_after=2)
    run(config_for(dropout=0.4, resume_dir=str(tmp_path)), resumed)
    assert unbroken.last_model is not None
    assert resumed.last_model is not None
    for ours, theirs in zip(resumed.last_model.parameters(), unbroken.last_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_run_that_is_not_paused_leaves_nothing(tmp_path: Path) -> None:
    run(config_for(checkpoint_dir=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_a_metric_that_is_not_finite_ends_a_run_also_where_it_would_have_been_paused(tmp_path: Path) -> None:
    config = config_for(checkpoint_dir=str(tmp_path))
    with pytest.raises(Diverged, match="val_loss at step 4 is inf"):
        run(config, PoisonedWorkload("metric"), pause_after=1)
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_is_not_there_or_cut_short_or_of_another_step_is_no_place_to_start(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"state.pt cannot be read: FileNotFoundError"):
        run(config_for(resume_dir=str(tmp_path / "gone")))
    run(config_for(checkpoint_dir=str(tmp_path)), pause_after=2)
    with pytest.raises(CheckpointError, match="is of step 8, not of step 12"):
        run(config_for(resume_dir=str(tmp_path), resume_at={"step": 12, "position": 192.0, "index": 3}))
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"state.pt cannot be read"):
        run(config_for(resume_dir=str(tmp_path)))


def test_the_test_split_is_measured_under_the_same_names() -> None:
    validation, test = run(config_for()), run(config_for(split="test"))
    assert validation.values("train_loss") == test.values("train_loss")
    assert validation.values("val_loss") != test.values("val_loss")


def test_on_the_seconds_axis_the_run_ends_by_the_clock() -> None:
    ticks = iter(range(10_000))
    config = config_for(axis="seconds", maximum=50, reports=5, warmup={"steps": 3})
    probe = probe_for(config, None, None, lambda: float(next(ticks)) / 2)
    clock = iter(range(10_000))
    train(TinyWorkload(), config, probe, lambda: float(next(clock)))
    assert probe.values("seconds")[-1] >= 50
    assert all(later > earlier for earlier, later in zip(probe.values("lr")[1:], probe.values("lr"), strict=False))


class RowsDataset:
    """A map-style dataset of dictionaries."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {"x": torch.full((6,), float(index)), "y": index % 2}


class PlainClass:
    """A user's class: no base, a dataset of dictionaries, no test data."""

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        return nn.Linear(6, 2)

    def train_data(self) -> Data:
        return RowsDataset()

    def eval_data(self) -> Data:
        return RowsDataset()

    def loss(self, model: nn.Module, batch: Any, /) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def evaluate(self, model: nn.Module, data: Any, /) -> Mapping[str, float]:
        batch = take(data, torch.arange(len(data)), torch.device("cpu"))
        return {"error": float((model(batch["x"]).argmax(1) != batch["y"]).float().mean())}


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_plain_class_with_a_dataset_trains(split: Any) -> None:
    config = config_for(batch_size=4, maximum=40, split=split)
    probe = probe_for(config)
    train(PlainClass(), config, probe)
    assert len(probe.values("error")) == 5
