"""Search space and baseline: what is searched, what is fixed, and where the first trial stands."""

from __future__ import annotations

from typing import Any

import pytest

from tuner.jobspec import Choices, Fixed, Range
from tuner.spec import Resolution, resolve
from tuner.spec_space import space_size


def resolved(search: object = None, baseline: object = None) -> Resolution:
    return resolve({"search": search, "baseline": baseline})


@pytest.mark.parametrize(
    ("name", "written", "expected"),
    [
        ("lr", 1, Fixed(1.0)),
        ("batch_size", 64.0, Fixed(64)),
        ("batch_size", {"low": 8, "high": 64}, Range(8.0, 64.0, integer=True)),
        ("batch_size", {"choices": ["16", 32.0]}, Choices((16, 32))),
        (
            "weight_decay",
            {"low": 1e-4, "high": 0.01, "log": True, "or_zero": True},
            Range(1e-4, 0.01, True, or_zero=True),
        ),
        ("loss_scale", "auto", Fixed("auto")),
        ("loss_scale", {"choices": ["auto", 1024]}, Choices(("auto", 1024.0))),
        ("loss_scale", {"low": 64, "high": 4096, "int": True, "log": True}, Range(64.0, 4096.0, True, True)),
        ("grad_clip", None, Fixed(None)),
        ("grad_clip", {"relative": "1.0"}, Fixed({"relative": 1.0})),
        ("grad_clip", {"choices": [None, 1]}, Choices((None, 1.0))),
        ("warmup", {"steps": 4000, "start": "1e-7"}, Fixed({"steps": 4000, "start": 1e-7})),
        ("warmup", {"steps": 4000}, Fixed({"steps": 4000})),
        ("optimizer", {"choices": ["adamw", "sgd"]}, Choices(("adamw", "sgd"))),
    ],
)
def test_each_notation_is_understood(name: str, written: object, expected: object) -> None:
    assert resolved({name: written}).job.space[name] == expected


def test_a_range_with_one_bound_takes_the_rest_from_the_workload() -> None:
    assert resolved({"lr": {"high": 0.1}}).job.space["lr"] == Range(1e-4, 0.1, log=True)


def test_a_wide_range_without_log_is_warned_about_unless_log_is_refused_outright() -> None:
    assert [w.field for w in resolved({"lr": {"low": 1e-5, "high": 1}}).warnings] == ["search.lr"]
    assert resolved({"lr": {"low": 1e-5, "high": 1, "log": False}}).warnings == ()


def test_what_the_baseline_leaves_out_moves_to_the_nearest_value_in_the_space() -> None:
    search = {
        "lr": {"low": 0.01, "high": 0.1},
        "batch_size": {"choices": [16, 48]},
        "weight_decay": 0.2,
        "grad_clip": {"choices": [None, 5.0]},
    }

    baseline = resolved(search).job.baseline

    assert (baseline["lr"], baseline["batch_size"], baseline["weight_decay"]) == (0.01, 48, 0.2)
    assert baseline["grad_clip"] == 5.0


def test_zero_weight_decay_is_inside_a_range_that_also_offers_zero() -> None:
    assert resolved(None, {"weight_decay": 0}).warnings == ()


def test_a_baseline_outside_its_range_is_kept_exactly_with_a_warning() -> None:
    resolution = resolved({"lr": {"low": 0.01, "high": 0.1}}, {"lr": "1e-3"})

    assert resolution.job.baseline["lr"] == 0.001
    assert resolution.job.space["lr"] == Range(0.01, 0.1)
    assert [warning.field for warning in resolution.warnings] == ["baseline.lr"]


def test_a_baseline_that_is_not_a_choice_joins_the_choices_with_a_warning() -> None:
    resolution = resolved({"batch_size": {"choices": [16, 32]}}, {"batch_size": 100})

    assert resolution.job.space["batch_size"] == Choices((16, 32, 100))
    assert [warning.field for warning in resolution.warnings] == ["baseline.batch_size"]


def test_a_baseline_that_differs_from_a_fixed_value_is_kept_with_a_warning() -> None:
    resolution = resolved({"momentum": 0.5}, {"momentum": 0.9})

    assert resolution.job.space["momentum"] == Fixed(0.5)
    assert resolution.job.baseline["momentum"] == 0.9
    assert [warning.field for warning in resolution.warnings] == ["baseline.momentum"]


def test_a_parameter_that_nobody_searches_is_fixed_where_the_baseline_has_it() -> None:
    resolution = resolved(None, {"optimizer": "sgd"})

    assert resolution.job.space["optimizer"] == Fixed("sgd")
    assert resolution.warnings == ()


@pytest.mark.parametrize(
    ("space", "size"),
    [
        ({}, 1),
        ({"a": Fixed(1), "b": Choices((1, 2, 3))}, 3),
        ({"a": Range(1, 4, integer=True), "b": Choices((True, 1))}, 8),
        ({"a": Range(1, 4, log=True, integer=True)}, 4),
        ({"a": Range(0.0, 1.0), "b": Choices((1,))}, None),
    ],
)
def test_space_size_counts_configurations(space: dict[str, Any], size: int | None) -> None:
    assert space_size(space) == size
