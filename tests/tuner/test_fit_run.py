"""Predictions and proofs in real processes, and a whole job under a limit that its batches do not fit into."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.tuner.support import RecordingObserver, probe_host, slot_setup
from tuner.assignment import Assignment, SlotReport
from tuner.cluster import Cluster
from tuner.memory_sampler import MemorySampler
from tuner.probe_process import ProbeHost
from tuner.records import Outcome, Phase
from tuner.slot import start_run
from tuner.spec import resolve
from tuner.study import run_study

MIB = 1 << 20
PREDICT = {"predict": [4, 8]}
PROVE = {"prove": True}


@pytest.fixture(scope="module")
def host() -> Iterator[ProbeHost]:
    with probe_host("digits-cnn") as a_host:
        yield a_host


def measured(
    host: ProbeHost,
    what: dict[str, Any],
    micro_batch: int,
    limit_mib: float | None = None,
    cap_mib: float | None = None,
) -> SlotReport:
    config = {
        "parameters": {"lr": 1e-6, "batch_size": micro_batch},
        "derived": {"micro_batch": micro_batch, "accumulation": 1, "loss_scale": "auto"},
        "seed": 3,
        "fidelity": {"axis": "samples", "max": 640, "reports": 5},
        "device": "cpu",
        "precision": "fp32",
        "trial": -1,
        "job_id": "job",
        "fit": {**what, "memory_fraction": 0.92},
    }
    setup = slot_setup(workload="digits-cnn", host_memory_mib=limit_mib)
    kinds: tuple[Literal["predict", "prove", "rates", "precisions"], ...] = ("predict", "prove", "rates", "precisions")
    kind = next(name for name in kinds if name in what)
    run = start_run(host, setup, Assignment("f0", config, False, kind, None if cap_mib is None else int(cap_mib * MIB)))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        report = run.step()
        if report.end is not None:
            return report
    raise AssertionError("the run has not ended")


def test_a_prediction_comes_back_even_under_a_limit_that_is_smaller_than_what_predicts(host: ProbeHost) -> None:
    report = measured(host, PREDICT, 8, limit_mib=5)

    assert report.end is not None and report.end.outcome == Outcome.OK
    assert report.fit is not None
    assert [one["micro_batch"] for one in report.fit["predictions"]] == [4, 8]


def test_a_proof_measures_its_peak_and_its_throughput(host: ProbeHost) -> None:
    small, large = measured(host, PROVE, 64), measured(host, PROVE, 1024)

    for report in (small, large):
        assert report.end is not None and report.end.outcome == Outcome.OK
        assert report.fit is not None and report.fit["samples_per_s"] > 0
    assert small.fit is not None and large.fit is not None
    assert 2 * MIB < small.fit["host_peak_bytes"] < large.fit["host_peak_bytes"] < 100 * MIB


def test_the_rates_of_a_range_test_come_back_and_the_highest_diverges(host: ProbeHost) -> None:
    report = measured(host, {"rates": {"low": 1e-4, "high": 100.0, "runs": 6.0, "seconds": 60.0}}, 64)

    assert report.end is not None and report.end.outcome == Outcome.OK
    assert report.fit is not None
    found = report.fit["rates"]
    assert (len(found["rates"]), found["steps"]) == (5, 10)
    assert found["rates"][-1]["loss"] is None or found["rates"][-1]["loss"] > found["untrained"]
    assert min(rate["loss"] for rate in found["rates"][:-1]) < found["untrained"]


def test_each_precision_comes_back_with_its_loss_and_the_time_of_a_step(host: ProbeHost) -> None:
    report = measured(host, {"precisions": {"among": ["fp32", "bf16"], "runs": 6.0, "seconds": 60.0}}, 64)
    late = measured(host, {"precisions": {"among": ["fp32"], "runs": 6.0, "seconds": 1e-6}}, 64)

    assert report.fit is not None and late.fit is not None
    whole, half = report.fit["precisions"]["tried"]
    assert (whole["precision"], half["precision"]) == ("fp32", "bf16")
    assert half["loss"] == pytest.approx(whole["loss"], rel=0.05)
    assert half["loss"] != whole["loss"]
    assert whole["step_s"] > 0
    assert "longer than" in late.fit["precisions"]["skipped"]


@pytest.mark.parametrize(("limit_mib", "stage"), [(10, "training step"), (4.2, "evaluation")])
def test_a_proof_over_its_limit_is_out_of_memory_in_a_named_stage(
    host: ProbeHost, limit_mib: float, stage: str
) -> None:
    report = measured(host, PROVE, 4096 if stage == "training step" else 1, limit_mib)

    assert report.end is not None and report.end.outcome == Outcome.OUT_OF_MEMORY
    assert report.fit is not None
    assert report.fit["stage"].startswith(stage)
    assert report.fit["host_peak_bytes"] <= (limit_mib + 1) * MIB


def test_a_proof_ends_as_soon_as_its_peak_is_over_its_cap(host: ProbeHost) -> None:
    whole = measured(host, PROVE, 1024, limit_mib=100)
    assert whole.fit is not None
    peak_mib = whole.fit["host_peak_bytes"] / MIB

    over = measured(host, PROVE, 1024, limit_mib=100, cap_mib=0.8 * peak_mib)
    under = measured(host, PROVE, 1024, limit_mib=100, cap_mib=1.2 * peak_mib)

    assert over.end is not None and over.end.outcome == Outcome.OK
    assert over.fit is not None and over.fit["is_over"] is True
    assert over.fit["stage"].startswith("training step")
    assert 0.8 * peak_mib * MIB < over.fit["host_peak_bytes"] <= whole.fit["host_peak_bytes"] * 1.01
    assert over.probe.seconds < 0.7 * whole.probe.seconds
    assert under.fit is not None and "is_over" not in under.fit and under.fit["samples_per_s"] > 0


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
def test_a_job_under_a_limit_that_half_of_its_batches_do_not_fit_into(cluster: Cluster, tmp_path: Path) -> None:
    limit_mib = 12.0
    observer = RecordingObserver()
    spec = {
        "workload": "digits-cnn",
        "search": {"batch_size": {"choices": [64, 128, 2048, 4096]}, "lr": {"low": 0.003, "high": 0.1, "log": True}},
        "baseline": {"batch_size": 4096, "lr": 1e-4},
        "fidelity": {"axis": "samples", "max": 8192, "reports": 4},
        "budget": {"trials": 6},
        "confirm": {"top": 1, "seeds": 2},
        "limits": {"host_memory_mib": limit_mib},
        "pruner": "none",
        "sampler": "random",
    }
    result = run_study(
        job=resolve(spec).job,
        job_id="job",
        storage_url=f"sqlite:///{tmp_path / 'study.db'}",
        observer=observer,
        cluster=cluster,
        data_folder=tmp_path / "data",
    )

    assert observer.phases[:2] == [Phase.FIT, Phase.SEARCH]
    fit = observer.fits[-1]
    assert fit["state"] == "done"
    assert fit["peak_bytes"] <= 0.92 * limit_mib * MIB
    assert fit["micro_batch"] < 2048
    assert observer.outcomes == {"ok": 6}
    assert [run.outcome for run in observer.confirmations] == [Outcome.OK] * len(observer.confirmations)
    for started in observer.started:
        derived = started.derived
        assert derived["micro_batch"] <= fit["micro_batch"]
        assert derived["micro_batch"] * derived["accumulation"] == started.parameters["batch_size"]
    assert result.recipes
    recipe = result.recipes[0]
    assert recipe.memory["proven_peak_bytes"] <= recipe.memory["cap_bytes"] < recipe.memory["limit_bytes"]
    assert fresh_peak(recipe.parameters, recipe.derived) <= limit_mib * MIB


def fresh_peak(parameters: Any, derived: Any) -> int:
    """What a recipe takes in a run of its own, without any limit."""
    with probe_host("digits-cnn") as host:
        host.ensure_ready()
        config = {
            "parameters": dict(parameters),
            "derived": dict(derived),
            "seed": 3,
            "fidelity": {"axis": "samples", "max": 8192, "reports": 4},
            "device": "cpu",
            "precision": "fp32",
            "trial": 0,
            "job_id": "job",
            "split": "test",
        }
        sampler = MemorySampler(host.warm_pid, is_command=False)
        run = start_run(host, slot_setup(workload="digits-cnn"), Assignment("t0", config, False))
        while run.step().end is None:
            pass
        return sampler.stop()
