"""The catalog and what the manifests in it promise."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
from torch import nn

from workloads.catalog import MANIFESTS, UnknownWorkload, manifest
from workloads.manifest import Manifest, ParameterInfo
from workloads.open import open_workload
from workloads.training import TrainingWorkload

every_manifest = pytest.mark.parametrize("described", MANIFESTS.values(), ids=MANIFESTS)
every_trained = pytest.mark.parametrize("name", [name for name, each in MANIFESTS.items() if each.needs_torch])


def test_the_built_ins_are_there() -> None:
    assert list(MANIFESTS) == ["digits-cnn", "byte-lm", "tabular-mlp", "digits-two-losses", "quadratic"]


def test_an_unknown_name_lists_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownWorkload) as caught:
        manifest("digit-cnn")
    assert caught.value.nearest == "digits-cnn"
    assert str(caught.value) == (
        "There is no built-in workload 'digit-cnn'; there are digits-cnn, byte-lm, tabular-mlp, digits-two-losses, "
        "quadratic. "
        "Did you mean digits-cnn?"
    )
    assert isinstance(caught.value, KeyError)


def test_a_name_like_no_other_has_no_nearest() -> None:
    assert UnknownWorkload("zzz").nearest is None


def test_reading_the_catalog_imports_nothing_heavy() -> None:
    code = (
        "import sys, workloads.catalog, workloads.horizon, workloads.parameters;"
        "print(sorted({'torch', 'numpy', 'sklearn', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@every_manifest
def test_search_and_baseline_name_declared_parameters(described: Manifest) -> None:
    assert set(described.search) <= set(described.parameters)
    assert set(described.baseline) <= set(described.parameters)
    assert described.metric in described.metrics
    assert all(name == info.name for name, info in described.parameters.items())


@every_manifest
def test_defaults_and_baselines_are_valid_values(described: Manifest) -> None:
    for name, info in described.parameters.items():
        assert is_valid(info, info.default), name
        if name in described.baseline:
            assert is_valid(info, described.baseline[name]), name


@every_manifest
def test_search_ranges_lie_within_the_bounds_and_hold_the_baseline(described: Manifest) -> None:
    for name, entry in described.search.items():
        assert isinstance(entry, dict)
        values = entry.get("choices") or [entry["low"], entry["high"]]
        assert all(is_valid(described.parameters[name], value) for value in values)
        baseline: Any = described.baseline[name]
        if "choices" in entry:
            assert baseline in values
        else:
            assert entry["low"] <= baseline <= entry["high"] or (baseline == 0 and entry.get("or_zero"))


def is_valid(info: ParameterInfo, value: object) -> bool:
    if value is None:
        return info.nullable
    if info.choices and value in info.choices:
        return True
    if info.type == "choice" or isinstance(value, bool) or not isinstance(value, int | float):
        return False
    low = -math.inf if info.low is None else info.low
    is_above = value > low if info.exclusive_low else value >= low
    is_whole = info.type != "integer" or isinstance(value, int)
    return is_above and is_whole and value <= (math.inf if info.high is None else info.high)


@every_trained
def test_counts_in_the_manifest_are_true(name: str) -> None:
    described, workload = manifest(name), open_workload(name)
    assert isinstance(workload, TrainingWorkload)
    data = workload.train_data()
    assert isinstance(data, tuple)
    model: nn.Module = workload.model(described.baseline)
    assert len(data[0]) == described.train_samples
    assert sum(p.numel() for p in model.parameters()) == described.model_parameters
    assert workload.tokens_per_sample == described.tokens_per_sample
