"""The first five minutes: a script that has never heard of x5tune, two commands, a recipe."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.examples.test_own_training import service

__all__ = ["service"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

SCRIPT = """
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
inputs = torch.randn(1024, 8)
targets = inputs @ torch.randn(8, 1) + 0.1 * torch.randn(1024, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

step = 0
for epoch in range(4):
    for start in range(0, 768, args.batch_size):
        batch = slice(start, min(start + args.batch_size, 768))
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
        optimizer.step()
        step += 1
    with torch.no_grad():
        loss = torch.nn.functional.mse_loss(model(inputs[768:]), targets[768:]).item()
    print(f"epoch {epoch} | step {step} | val loss {loss:.5f}")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "train.py").write_text(SCRIPT)
    yield tmp_path


def test_an_unchanged_script_comes_to_a_recipe_by_one_submission(project: Path, service: Mapping[str, str]) -> None:
    command = [
        *(sys.executable, "-m", "x5tune.cli", "submit", "--watch"),
        *("--set", "search.lr={low: 1e-4, high: 0.3, log: true}"),
        *("--set", r"metrics.stdout=step (?P<step>\d+) \| val loss (?P<val_loss>\S+)"),
        *("--set", "budget.trials=4", "--set", "confirm={top: 1, seeds: 2}", "--set", "snapshot=true"),
        *("--", "python", "train.py", "--lr", "{lr}", "--batch-size", "{micro_batch}"),
    ]

    run = subprocess.run(command, cwd=project, env=service, capture_output=True, text=True, timeout=240, check=False)

    assert run.returncode == 0, run.stdout + run.stderr
    assert "trial 0 (baseline): ok" in run.stdout
    assert "It ended because all trials of the budget have run." in run.stdout
    assert "16, 32, 64, 128, 256 are tried, from 64" in run.stderr
    assert "the first run, alone and to its own end" in run.stderr
    shown = subprocess.run(
        [*command[:3], "show", "last", "--json"], env=service, capture_output=True, text=True, timeout=60, check=True
    )
    resolved = json.loads(shown.stdout)["resolved"]
    assert resolved["fidelity"] == {"axis": "samples", "max": 3072.0, "reports": 20}
    assert Path(resolved["workload"]["folder"]).parent.name == "snapshots"
    assert resolved["objective"] == {"metric": "val_loss", "direction": "minimize"}
