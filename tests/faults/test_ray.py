"""An embedded Ray that dies, ends, or runs for a long time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.children import import_path
from tests.tuner.support import short_folder
from tuner.cluster import prune_logs

SCRIPT = """
import os, sys, time
from tuner.cluster import ray_cluster, vital_children

def say(reason):
    print(reason, flush=True)
    os._exit(7)

with ray_cluster(cpus=1, on_failure=say):
    if len(sys.argv) > 1:
        time.sleep(1)
        vital_children()[sys.argv[1]].kill()
        time.sleep(100)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **import_path(), "TMPDIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=110,
    )


@pytest.mark.ray
@pytest.mark.parametrize("name", ["raylet", "gcs_server"])
def test_the_death_of_a_process_that_ray_needs_is_heard_of(name: str) -> None:
    with short_folder() as folder:
        done = run(folder, name)
    assert done.returncode == 7
    assert done.stdout.endswith(f"Ray's {name} has died\n")  # Ray may say something before


@pytest.mark.ray
def test_taking_ray_down_is_no_death_and_leaves_nothing(tmp_path: Path) -> None:
    with short_folder() as folder:
        done = run(folder)
        left = list((folder / f"x5-{os.getuid()}").iterdir())
    assert (done.returncode, done.stdout, left) == (0, "", [])


def test_the_logs_of_workers_that_have_ended_are_removed(tmp_path: Path) -> None:
    logs = tmp_path / "session_2026-01-01_00-00-00_000000_1" / "logs"
    logs.mkdir(parents=True)
    with subprocess.Popen(["true"]) as process:
        process.wait()
    dead, alive = process.pid, os.getpid()
    for name in (
        f"worker-ab12-01000000-{dead}.out",
        f"worker-ab12-01000000-{dead}.err",
        f"python-core-worker-ab12_{dead}.log",
        f"worker-ab12-01000000-{alive}.out",
        "raylet.out",
        "gcs_server.out",
    ):
        (logs / name).touch()

    prune_logs(tmp_path)

    left = sorted(path.name for path in logs.iterdir())
    assert left == ["gcs_server.out", "raylet.out", f"worker-ab12-01000000-{alive}.out"]
