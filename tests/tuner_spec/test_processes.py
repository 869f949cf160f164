"""Several processes a trial: what can have them, and what they can share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tuner_spec.test_own_code import assert_refused, command, folder, own, warned
from tuner.derivation import derive
from tuner.jobspec import Resources
from tuner.spec import resolve
from tuner.torchrun import RELAY, launched

__all__ = ["folder"]

TWO = {"resources": {"processes": 2}}
PYTHON = ("python", "train.py", "{lr}", "{micro_batch}", "{seed}")


def with_batch(batch_size: Any, **keys: Any) -> dict[str, Any]:
    return {"search": {"lr": 0.1, "batch_size": batch_size}, "resources": {"processes": 4}, **keys}


def test_a_command_may_have_several_processes_and_a_cpu_for_each(folder: str) -> None:
    job = resolve(command(folder, *PYTHON, **with_batch({"choices": [16, 32]}))).job

    assert job.resources == Resources(cpus=4.0, gpus=None, processes=4)
    assert resolve(job.to_json()).job == job


def test_the_processes_share_the_batch() -> None:
    assert derive({"batch_size": 64}, 4) == {"loss_scale": "auto", "micro_batch": 16, "accumulation": 1, "processes": 4}
    assert "processes" not in derive({"batch_size": 64}, 1)


def test_the_built_ins_that_the_loop_trains_may_have_several_processes() -> None:
    assert resolve({"workload": "digits-cnn", **TWO}).job.resources.processes == 2
    assert_refused({"workload": "quadratic", **TWO}, "resources.processes", "runs in one process")


@pytest.mark.parametrize(
    ("keys", "field", "parts"),
    [
        (with_batch({"choices": [16, 18, 30]}), "search.batch_size", ["cannot share 18, 30", "such as [16, 32, 64]"]),
        (with_batch(6), "search.batch_size", ["4 processes cannot share 6", "micro_batch x accumulation x processes"]),
        (with_batch({"low": 8, "high": 64}), "search.batch_size", ["8 to 64", "{choices: [16, 32, 64]}"]),
        (with_batch({"choices": [8]}, baseline={"batch_size": 7}), "search.batch_size", ["cannot share 7"]),
        (with_batch(8, baseline={"batch_size": 7}), "baseline.batch_size", ["cannot share 7"]),
        (with_batch(8, resources={"processes": 4, "gpus": 2}), "resources.gpus", ["per trial", "0 for the CPU"]),
        (with_batch(8, resources={"processes": 4, "gpus": 0.5}), "resources.gpus", ["4 processes cannot share 0.5"]),
        (with_batch(8, resources={"processes": 0}), "resources.processes", ["at least 1"]),
        (with_batch(8, resources={"processes": 1000}), "resources.processes", ["64"]),
    ],
)  # fmt: skip
def test_what_the_processes_cannot_share_is_refused(
    folder: str, keys: dict[str, Any], field: str, parts: list[str]
) -> None:
    assert_refused(command(folder, *PYTHON, **keys), field, *parts)


@pytest.mark.parametrize("gpus", ["auto", 0, 2, 4])
def test_the_gpus_of_a_trial_are_those_of_all_its_processes(folder: str, gpus: Any) -> None:
    spec = command(folder, "python", "train.py", "{lr}", resources={"processes": 2, "gpus": gpus})

    assert resolve(spec).job.resources.gpus == (None if gpus == "auto" else gpus)


def test_the_estimate_counts_every_gpu(folder: str) -> None:
    spec = command(folder, "python", "train.py", "{lr}{seed}", fidelity={"axis": "seconds", "max": 360},
                   budget={"trials": 10}, confirm={"top": 0})  # fmt: skip

    hours = [
        resolve({**spec, "resources": {"processes": 2, "gpus": gpus}}).estimate.device_hours for gpus in ("auto", 0, 4)
    ]

    assert hours == [pytest.approx(2.0), pytest.approx(1.0), pytest.approx(4.0)]


def test_a_function_runs_in_one_process(folder: str) -> None:
    assert_refused(own(folder, **TWO), "resources.processes", "train.py:train is a function", "torchrun")


def test_what_the_source_does_not_show_is_left_to_the_import(folder: str) -> None:
    Path(folder, "train.py").write_text("from elsewhere import train\n")

    assert resolve(own(folder, **TWO)).job.resources.processes == 2


def test_a_program_that_is_not_python_cannot_be_started_by_torchrun(folder: str) -> None:
    Path(folder, "run.sh").write_text("#!/bin/sh\n")
    Path(folder, "run.sh").chmod(0o755)
    spec = command(folder, "./run.sh", "{lr}", "{seed}", **TWO)

    assert_refused(spec, "resources.processes", "'./run.sh' is no Python interpreter", "{processes}")


@pytest.mark.parametrize(
    "argv",
    [
        ["sh", "run.sh", "{processes}", "{lr}"],
        ["torchrun", "--nproc-per-node={processes}", "train.py", "{lr}"],
        ["accelerate", "launch", "--num_processes", "{processes}", "--main_process_port", "0", "train.py", "{lr}"],
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node={processes}", "train.py", "{lr}"],
    ],
)
def test_a_command_that_starts_its_processes_itself_is_left_alone(folder: str, argv: list[str]) -> None:
    resolution = resolve(command(folder, *argv, "{seed}", **TWO))

    assert "workload.command" not in warned(resolution)
    assert launched(argv, ["filled"], 2) == ["filled"]


def test_a_launcher_that_is_not_told_how_many_is_warned(folder: str) -> None:
    resolution = resolve(command(folder, "torchrun", "--nproc-per-node=2", "train.py", "{lr}", "{seed}", **TWO))

    assert "'torchrun' starts the processes itself" in warned(resolution)["workload.command"]


def test_processes_is_a_placeholder_without_a_parameter_behind_it(folder: str) -> None:
    assert resolve(command(folder, "x", "{lr}", "{processes}")).job.resources.processes == 1
    assert_refused(own(folder, search={"lr": 1, "processes": 2}), "search.processes", "resources.processes")


PREFIX = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--local-addr=127.0.0.1", "--no-python"]


@pytest.mark.parametrize(
    ("argv", "at"),
    [
        (["python", "train.py", "--backend", "deepspeed"], 0),
        (["/env/bin/python3.12", "-u", "train.py"], 0),
        (["python", "-m", "pkg.train", "torchrun"], 0),
        (["env", "A=1", "python", "train.py"], 2),
        (["uv", "run", "python", "train.py"], 2),
    ],
)
def test_a_python_command_runs_under_the_torchrun_of_its_own_interpreter(argv: list[str], at: int) -> None:
    python = argv[at]

    assert launched(argv, argv, 2) == [*argv[:at], python, *PREFIX, python, "-I", RELAY, *argv[at:]]
    assert launched(argv, argv, 1) == argv
