"""Each built-in on its real data: it trains, reports on every axis, and tells good settings from bad."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.workloads.support import RecordingProbe, config_for, probe_for
from workloads.catalog import MANIFESTS, manifest
from workloads.contract import Diverged
from workloads.open import open_workload

every_built_in = pytest.mark.parametrize("name", MANIFESTS)

SHORT = {"digits-cnn": 1600, "byte-lm": 320, "tabular-mlp": 1600, "digits-two-losses": 1600, "quadratic": 4096}
"""Samples that show learning, in well under a second."""


def run(name: str, **settings: Any) -> RecordingProbe:
    settings = {**manifest(name).baseline, "batch_size": 16, "maximum": SHORT[name], **settings}
    config = config_for(**settings)
    probe = probe_for(config, manifest(name).tokens_per_sample)
    open_workload(name).run(config, probe)
    return probe


@every_built_in
def test_training_lowers_the_loss_and_reports_what_the_manifest_says(name: str) -> None:
    probe = run(name)
    losses = probe.values("val_loss")
    assert losses[-1] < losses[0]
    reported = set(probe.reports[-1][1]) - {"samples", "tokens", "seconds", "noise_scale"}
    assert reported == set(manifest(name).metrics) - {"loss_scale", "skipped_steps", "noise_scale"}


@every_built_in
def test_every_index_is_reported_on_the_samples_and_steps_axes(name: str) -> None:
    assert run(name, maximum=160, reports=5).indices() == [1, 2, 3, 4, 5]
    assert run(name, axis="steps", maximum=10, reports=5).indices() == [1, 2, 3, 4, 5]


def test_every_index_is_reported_on_the_tokens_axis() -> None:
    assert run("byte-lm", axis="tokens", maximum=16 * 64 * 5, reports=5).indices() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["digits-cnn", "tabular-mlp", "quadratic"])
def test_the_seconds_axis_ends_in_time(name: str) -> None:
    began = time.monotonic()
    probe = run(name, axis="seconds", maximum=0.2, reports=4)
    assert time.monotonic() - began < 2
    assert probe.indices()[-1] == 4
    assert probe.values("seconds")[-1] >= 0.2


@every_built_in
def test_the_same_seed_gives_the_same_numbers_on_either_split(name: str) -> None:
    assert run(name, maximum=64).reports == run(name, maximum=64).reports
    assert run(name, maximum=64, split="test").values("val_loss") != run(name, maximum=64).values("val_loss")
    assert run(name, maximum=64, seed=4).values("val_loss") != run(name, maximum=64).values("val_loss")


@every_built_in
def test_the_baseline_is_neither_the_best_nor_the_worst(name: str) -> None:
    lr = float(str(manifest(name).baseline["lr"]))
    baseline, better = (run(name, batch_size=32, lr=each).values("val_loss")[-1] for each in (lr, 4 * lr))
    assert better < baseline
    try:
        worse = run(name, batch_size=32, lr=1.0).values("val_loss")[-1]
    except Diverged:
        worse = math.inf
    assert worse > baseline


@pytest.mark.parametrize("name", ["digits-cnn", "tabular-mlp", "digits-two-losses"])
@pytest.mark.parametrize("changed", [{"dropout": 0.5}, {"label_smoothing": 0.1}, {"focal_gamma": 2.0}])
def test_what_shapes_the_training_loss_changes_training(name: str, changed: dict[str, float]) -> None:
    plain = run(name, maximum=64).values("train_loss")
    assert run(name, maximum=64, **changed).values("train_loss") != plain


def test_learnt_weights_of_two_losses_train_both() -> None:
    weighed, equal = (run("digits-two-losses", lr=0.01, loss_weighting=how) for how in ("uncertainty", "equal"))
    assert weighed.values("train_loss") != equal.values("train_loss")
    for name in ("val_loss", "val_reconstruction"):
        assert weighed.values(name)[-1] < 0.8 * weighed.values(name)[0]


@pytest.mark.parametrize("parameter", ["attention_dropout", "dropout", "label_smoothing"])
def test_byte_lm_uses_each_of_its_own_parameters(parameter: str) -> None:
    plain = run("byte-lm", maximum=32, reports=1).values("train_loss")
    assert run("byte-lm", maximum=32, reports=1, **{parameter: 0.3}).values("train_loss") != plain


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["digits-cnn", "byte-lm", "tabular-mlp", "digits-two-losses"])
def test_half_precision_is_finite(name: str, precision: str) -> None:
    assert math.isfinite(run(name, maximum=64, reports=1, precision=precision).values("val_loss")[-1])


def test_the_quadratic_diverges_beyond_the_learning_rate_that_theory_allows() -> None:
    assert math.isfinite(run("quadratic", lr=0.0195).values("val_loss")[-1])
    with pytest.raises(Diverged, match=r"val_loss at step \d+ is inf"):
        run("quadratic", lr=0.05)


def test_the_quadratic_misbehaves_as_asked(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Diverged, match="nan"):
        run("quadratic", nan_at=2)
    with pytest.raises(RuntimeError, match="crash_at: report 3"):
        run("quadratic", crash_at=3)
    run("quadratic", print_bytes=1000)
    assert len(capfd.readouterr().out) == 5000
    began = time.monotonic()
    run("quadratic", sleep_seconds=0.02, allocate_mib=1)
    assert time.monotonic() - began >= 0.1


IN_A_CLEAN_PARENT = """
import os, sys, time
from tests.workloads.support import config_for, probe_for
from workloads.open import open_workload

workload = open_workload({name!r})
assert len(os.listdir("/proc/self/task")) == 1, "threads"
assert not {{"sklearn", "pandas"}} & set(sys.modules)
modules_before = set(sys.modules)
for _ in range(2):
    if (child := os.fork()) == 0:
        config = config_for(maximum=64, reports=1)
        probe = probe_for(config, 64)
        began = time.process_time()
        workload.run(config, probe)
        elapsed_s = time.process_time() - began
        late = sorted(set(sys.modules) - modules_before)
        print(len(probe.reports), round(elapsed_s, 3), len(late), late[:5], flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert len(os.listdir("/proc/self/task")) == 1, "threads afterwards"
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@every_built_in
def test_an_opened_workload_has_one_thread_and_its_forks_train_at_once(name: str) -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    code = IN_A_CLEAN_PARENT.format(name=name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        reports, elapsed_s, late_imports = line.split()[:3]
        assert int(reports) == 1
        assert float(elapsed_s) < 0.9, line  # torch._dynamo alone would take more
        assert int(late_imports) < 30, line


def test_the_quadratic_needs_no_torch() -> None:
    code = "import sys, workloads.open; workloads.open.open_workload('quadratic'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
