"""Where Ray keeps its files, and what a job gets of a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tuner.support import job, short_folder
from tuner.cluster import Cluster, private_folder, runtime_folder
from tuner.device import Device
from tuner.study import CannotRunError, decide, slot_count


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with short_folder() as folder:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
        yield folder


def test_the_runtime_folder_is_private_and_short(temporary: Path) -> None:
    folder = runtime_folder()

    assert folder == temporary / f"x5-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_long_temporary_folder_is_not_used_because_sockets_would_not_fit(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(temporary / ("long" * 20)))

    assert len(str(runtime_folder())) <= 40


def test_what_dead_processes_have_left_is_removed_and_nothing_else(temporary: Path) -> None:
    with private_folder() as folder:
        for leftover in ("0abc", "notes"):
            (folder.parent / leftover / "inside").mkdir(parents=True)

        assert {entry.name for entry in runtime_folder().iterdir()} == {folder.name, "notes"}
    assert {entry.name for entry in runtime_folder().iterdir()} == {"notes"}


def test_a_killed_process_leaves_its_folder_to_the_next(temporary: Path) -> None:
    script = "import os, tuner.cluster as c; folder = c.private_folder(); folder.__enter__(); os.kill(os.getpid(), 9)"
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert len(list((temporary / f"x5-{os.getuid()}").iterdir())) == 1

    assert list(runtime_folder().iterdir()) == []


def test_a_link_in_place_of_the_runtime_folder_is_refused(temporary: Path) -> None:
    (temporary / "mine" / "999999999").mkdir(parents=True)
    (temporary / f"x5-{os.getuid()}").symlink_to(temporary / "mine")

    with pytest.raises(PermissionError, match="belongs to somebody else"):
        runtime_folder()

    assert (temporary / "mine" / "999999999").exists()


@pytest.mark.parametrize(
    ("resources", "cpus", "gpus", "slots"),
    [
        ({"cpus": 1}, 8.0, 0.0, 8),
        ({"cpus": 3}, 8.0, 0.0, 2),
        ({"cpus": 1, "gpus": 1}, 8.0, 2.0, 2),
        ({"cpus": 1, "gpus": 0.1}, 64.0, 1.0, 10),
        ({"cpus": 4, "gpus": 1}, 4.0, 8.0, 1),
    ],
)
def test_as_many_slots_as_the_scarcest_resource_allows(
    resources: dict[str, float], cpus: float, gpus: float, slots: int
) -> None:
    assert slot_count(job(resources=resources), Cluster(cpus, gpus, Path("unused"))) == slots


@pytest.mark.parametrize(
    ("device", "wanted", "precision"),
    [
        (Device("cpu", "cpu"), "auto", "fp32"),
        (Device("cuda", "A100", True), "auto", "bf16"),
        (Device("cuda", "T4", False), "auto", "fp16"),
        (Device("cuda", "GPU"), "auto", "fp16"),
        (Device("cuda", "A100", True), "fp32", "fp32"),
    ],
)
def test_precision_follows_from_the_device_unless_asked_for(device: Device, wanted: str, precision: str) -> None:
    assert device.precision(wanted) == precision


@pytest.mark.parametrize(("gpus", "decided"), [(0, 0.0), (2, 2.0), (8, 2.0)])
def test_each_process_of_a_trial_gets_a_gpu_where_there_are_some(gpus: float, decided: float) -> None:
    a_job = job(workload="digits-cnn", resources={"processes": 2})

    found, _ = decide(a_job, Cluster(4.0, gpus, Path("unused")))

    assert (found.resources.gpus, found.resources.cpus) == (decided, 2.0)


def test_fewer_cpus_than_processes_is_told_with_the_remedy() -> None:
    a_job = job(workload="digits-cnn", resources={"processes": 4})

    said = r"cpus = 4, one for each of resources.processes = 4, but this cluster has 2 CPUs; set resources.cpus: 2 or"
    with pytest.raises(CannotRunError, match=said):
        decide(a_job, Cluster(2.0, 0.0, Path("unused")))


def test_fewer_gpus_than_processes_is_told_with_the_remedy() -> None:
    a_job = job(workload="digits-cnn", resources={"processes": 2})

    with pytest.raises(CannotRunError, match=r"takes a GPU each, but this cluster has 1; set resources.gpus: 0"):
        decide(a_job, Cluster(4.0, 1.0, Path("unused")))
