"""How soon a probe reaches the first line of a user's function: forked, and in a fresh interpreter with torch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tuner.probe_process import Exited, ProbeHost, Report

MODULE = """
import torch
import time

def train(config, probe):
    now = time.monotonic()
    probe.report(step=1, val_loss=now)
"""
FRESH = "import torch, time; print(time.monotonic())"
CONFIG = {
    "parameters": {"lr": 0.001},
    "derived": {},
    "seed": 0,
    "fidelity": {"axis": "steps", "max": 1, "reports": 1},
    "device": "cpu",
    "precision": "fp32",
    "trial": 0,
    "job_id": "bench",
    "split": "validation",
}


def forked(repeats: int) -> list[float]:
    """Seconds from the order to the user's first line, of probes of a warm parent."""
    with tempfile.TemporaryDirectory(prefix="x5b") as name:
        folder = Path(name)
        (folder / "user").mkdir()
        (folder / "user" / "mine.py").write_text(MODULE)
        workload = {"target": "mine.py:train", "folder": str(folder / "user"), "metric": "val_loss"}
        host = ProbeHost(workload, folder / "h", {}, 1.0)
        try:
            host.ensure_ready()
            return [first_line(host) for _ in range(repeats)]
        finally:
            host.close()


def first_line(host: ProbeHost) -> float:
    began, reached = time.monotonic(), 0.0
    host.start(CONFIG, {})
    while True:
        event = host.wait(30.0)
        if isinstance(event, Report):
            reached = float(event.message["metrics"]["val_loss"])
            host.answer("continue")
        elif isinstance(event, Exited) and reached:
            return reached - began
        else:
            raise RuntimeError(f"the probe has not reported: {event}")


def fresh(repeats: int) -> list[float]:
    """Seconds from the start of an interpreter to the line after its import of torch."""
    found = []
    for _ in range(repeats):
        began = time.monotonic()
        said = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=True).stdout
        found.append(float(said) - began)
    return found


def table(repeats: int = 20) -> None:
    """Print both, in milliseconds."""
    print(f"\nfrom the order to the first line of a user's function, {repeats} times each")
    print(f"{'':28}{'median ms':>12}{'max ms':>12}")
    for way, seconds in (("forked probe", forked(repeats)), ("fresh interpreter", fresh(repeats))):
        print(f"{way:28}{statistics.median(seconds) * 1e3:12.1f}{max(seconds) * 1e3:12.1f}", flush=True)
