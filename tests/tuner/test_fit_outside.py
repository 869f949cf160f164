"""The fit of the user's own commands and functions: proven from outside, by memory, reports and exit."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.tuner.support import CPU, RecordingObserver, short_folder, slot_setup
from tuner.cluster import Cluster
from tuner.coordinator import Coordinator
from tuner.jobspec import Choices, Fixed, Range, ResolvedJob
from tuner.probe_process import ProbeHost
from tuner.records import Phase
from tuner.search import Search
from tuner.slot import start_run
from tuner.spec import resolve
from tuner.study import run_study

SCRIPT = """
import json, os, sys
micro, accumulation = int(sys.argv[1]), int(sys.argv[2])
held = bytearray(micro << 20)
for step in range(1, 6):
    with open(os.environ["X5TUNE_REPORT"], "a") as report:
        print(json.dumps({"step": step, "metrics": {"val_loss": 1 / step}, "samples": step * 64}), file=report)
"""
FUNCTION = """
def train(config, probe):
    held = bytearray(config["micro_batch"] << 20)
    for step in range(1, probe.steps + 1):
        if probe.due(step):
            probe.report(step=step, val_loss=1 / step)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as a_folder:
        yield a_folder


def job(folder: Path, workload: dict[str, Any], limit_mib: float, processes: int = 1) -> ResolvedJob:
    spec = {
        "workload": {**workload, "folder": str(folder)},
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "search": {"batch_size": {"choices": [16, 64]}, "lr": 0.1},
        "baseline": {"batch_size": 64},
        "fidelity": {"axis": "samples", "max": 320, "reports": 5},
        "budget": {"trials": 1},
        "confirm": {"seeds": 0},
        "limits": {"host_memory_mib": limit_mib},
        "resources": {"processes": processes},
    }
    return resolve(spec).job


def fit(folder: Path, a_job: ResolvedJob) -> tuple[RecordingObserver, dict[str, Any]]:
    """Phase `fit` in one real slot; what it came to, and what the first trial then gets."""
    observer = RecordingObserver()
    search = Search(a_job, "job", optuna.storages.InMemoryStorage())
    coordinator = Coordinator(a_job, "job", search, observer, device=CPU, slots=1)
    coordinator.begin()
    setup = slot_setup(
        folder,
        workload=a_job.workload,
        code=a_job.code,
        host_memory_mib=a_job.limits.host_memory_mib,
        processes=a_job.resources.processes,
    )
    host = ProbeHost(setup.to_load(), folder / "h", setup.own_environment, 1.0)
    try:
        while (assignment := coordinator.next()) is not None and assignment.fit is not None:
            run = start_run(host, setup, assignment)
            while (report := run.step()).end is None:
                pass
            coordinator.on_report(assignment.key, report)
    finally:
        host.close()
        shutil.rmtree(folder / "h", ignore_errors=True)
    assert assignment is not None
    return observer, dict(assignment.probe["derived"])


def test_a_command_is_tried_downwards_from_its_largest_batch(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    command = {"command": ["python", "train.py", "{micro_batch}", "{accumulation}"]}

    observer, derived = fit(folder, job(folder, command, limit_mib=48))

    assert observer.phases == [Phase.FIT, Phase.SEARCH]
    proofs = [(proof["micro_batch"], proof["fits"]) for proof in observer.fits[-1]["proofs"]]
    assert proofs[0] == (64, False)
    assert observer.fits[-1]["proofs"][0]["stage"] == "before the first report"
    assert observer.fits[-1]["micro_batch"] in (16, 32)
    assert derived["micro_batch"] * derived["accumulation"] == 64
    assert derived["micro_batch"] == observer.fits[-1]["micro_batch"]


RANKED = """
import os, pathlib, sys, time
held = bytearray(int(sys.argv[1]) << 24)
together = pathlib.Path(os.environ["X5TUNE_RUN_DIR"], "together")
if os.environ["RANK"] == "1":
    more = bytearray(int(sys.argv[1]) << 24)  # this one takes twice as much
    together.touch()
while not together.exists():  # as in any backward pass, nobody goes on without the others
    time.sleep(0.01)
"""


def test_of_several_processes_the_one_that_takes_most_has_to_fit(folder: Path) -> None:
    """Under torchrun, whose own process imports torch: a limit below that would leave nothing."""
    (folder / "train.py").write_text(RANKED + SCRIPT.replace("held = bytearray(micro << 20)", ""))
    command = {"command": ["python", "train.py", "{micro_batch}", "{accumulation}"]}

    observer, derived = fit(folder, job(folder, command, limit_mib=800, processes=2))

    fit_of = observer.fits[-1]
    assert (fit_of["state"], fit_of["micro_batch"]) == ("done", 16), "of 32 the second process takes 1 GiB"
    assert fit_of["proofs"][0]["micro_batch"] == 32, "64 are 32 for each"
    assert 512 << 20 <= fit_of["peak_bytes"] <= 800 << 20
    assert derived == {"loss_scale": "auto", "micro_batch": 16, "accumulation": 2, "processes": 2}


def test_a_function_that_reads_its_micro_batch_is_fitted_too(folder: Path) -> None:
    (folder / "train.py").write_text(FUNCTION)

    observer, derived = fit(folder, job(folder, {"python": "train.py:train"}, limit_mib=48))

    assert observer.fits[-1]["state"] == "done"
    assert derived["micro_batch"] in (16, 32)


def test_what_fits_whole_takes_one_proof(folder: Path) -> None:
    (folder / "train.py").write_text(FUNCTION)

    observer, derived = fit(folder, job(folder, {"python": "train.py:train"}, limit_mib=300))

    assert [proof["micro_batch"] for proof in observer.fits[-1]["proofs"]] == [64]
    assert (derived["micro_batch"], derived["accumulation"]) == (64, 1)


def test_batches_that_code_cannot_cut_and_that_do_not_fit_are_left_out(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    command = {"command": ["python", "train.py", "{batch_size}", "1"]}

    observer, derived = fit(folder, job(folder, command, limit_mib=48))

    assert [(proof["micro_batch"], proof["fits"]) for proof in observer.fits[-1]["proofs"]] == [(64, False), (16, True)]
    assert [one["batch_size"] for one in observer.fits[-1]["left_out"]] == [64]
    assert "goes in one piece" in observer.fits[-1]["left_out"][0]["reason"]
    assert observer.decided[-1].space["batch_size"] == Choices((16,))
    assert (derived["micro_batch"], derived["accumulation"]) == (16, 1), "the baseline asked for 64"


def test_a_fixed_batch_that_code_cannot_cut_is_left_alone(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    a_job = job(folder, {"command": ["python", "train.py", "{batch_size}", "1"]}, limit_mib=48)
    fixed = dataclasses.replace(a_job, space={**a_job.space, "batch_size": Fixed(64)})

    observer, derived = fit(folder, fixed)

    assert observer.phases == [Phase.SEARCH]
    assert derived["micro_batch"] == 64


@pytest.mark.ray
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sampler", ["freeze_thaw", "tpe"])
def test_a_job_searches_only_the_batches_that_can_be_made(
    cluster: Cluster, folder: Path, tmp_path: Path, sampler: str
) -> None:
    (folder / "train.py").write_text(SCRIPT)
    command = {"command": ["python", "train.py", "{batch_size}", "1"]}
    a_job = job(folder, command, limit_mib=64)
    batches = Choices((8, 16, 24, 256, 512))
    space = {**a_job.space, "batch_size": batches, "lr": Range(0.01, 1.0, log=True)}
    baseline = {**a_job.baseline, "batch_size": 512}
    budget = dataclasses.replace(a_job.budget, trials=6)
    pruner = "none" if sampler == "tpe" else sampler
    observer = RecordingObserver()

    result = run_study(
        job=dataclasses.replace(a_job, space=space, baseline=baseline, budget=budget, sampler=sampler, pruner=pruner),
        job_id="job",
        storage_url=f"sqlite:///{tmp_path / 'study.db'}",
        observer=observer,
        cluster=cluster,
        data_folder=tmp_path / "data",
    )

    assert {one["batch_size"] for one in observer.fits[-1]["left_out"]} == {256, 512}
    assert {started.parameters["batch_size"] for started in observer.started} <= {8, 16, 24}
    assert observer.started[0].is_baseline and observer.started[0].parameters["batch_size"] == 24
    assert "out_of_memory" not in observer.outcomes
    remark = next(finding for finding in result.diagnosis if finding.code == "batch_sizes_left_out")
    assert "the baseline ran with a batch size of 24 instead of 512" in remark.message
