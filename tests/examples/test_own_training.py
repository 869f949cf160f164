"""A script that has never heard of x5tune, a function, a class and a DDP script, from the command line to a recipe."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.service.test_supervisor import serving

pytestmark = [pytest.mark.ray, pytest.mark.timeout(480)]

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = ("fidelity.max=6400", "budget.trials=3", "confirm={top: 1, seeds: 2}")


@pytest.fixture
def service(home: Path) -> Iterator[Mapping[str, str]]:
    """The environment of a command that talks to a running service."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("X5TUNE_")}
    with serving(home, runner=True):
        yield {**environment, "X5TUNE_HOME": str(home), "NO_COLOR": "1"}


def x5tune(service: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "x5tune.cli", *arguments]
    return subprocess.run(command, env=service, capture_output=True, text=True, timeout=200, check=False)


def test_the_examples_of_ones_own_training_run_to_their_end(service: Mapping[str, str]) -> None:
    small = [argument for each in SMALL for argument in ("--set", each)]
    for example in ("script", "function", "class"):
        run = x5tune(service, "submit", str(EXAMPLES / example / "job.yaml"), *small, "--watch")

        assert run.returncode == 0, run.stdout + run.stderr
        assert "It ended because all trials of the budget have run." in run.stdout
        assert "trial 0 (baseline): ok" in run.stdout
        exported = x5tune(service, "trials", "last", "--json")
        assert '"outcome": "ok"' in exported.stdout


def test_the_example_of_two_processes_runs_to_its_end(service: Mapping[str, str]) -> None:
    small = ("--set", "fidelity.max=6400", "--set", "budget.trials=2", "--set", "confirm.top=0")

    run = x5tune(service, "submit", str(EXAMPLES / "ddp" / "job.yaml"), *small, "--watch")

    assert run.returncode == 0, run.stdout + run.stderr
    assert "trial 0 (baseline): ok" in run.stdout
    exported = x5tune(service, "trials", "last", "--json")
    assert '"processes": 2' in exported.stdout
