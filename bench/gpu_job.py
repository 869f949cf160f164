"""A small tuning job through the whole engine, without a service: `bench.gpu_check`'s last section."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.overhead import NoObserver
from tuner.cluster import ray_cluster
from tuner.records import TrialEnded
from tuner.spec import resolve
from tuner.study import run_study

TRIALS = 4
STEPS = 12


@dataclass(frozen=True, slots=True)
class Outcome:
    baseline: float | None
    best: float | None
    device_seconds: float
    seconds: float
    note: str


class _Observer(NoObserver):
    """Remembers how each trial ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[TrialEnded] = []

    def trial_ended(self, ended: TrialEnded) -> None:
        super().trial_ended(ended)
        self.ended.append(ended)


def run_small_job(model: str, *, on_gpu: bool) -> Outcome:
    """Four configurations of a class in `bench.gpu_models`, a few steps each."""
    folder = Path(__file__).parent
    spec: dict[str, Any] = {
        "workload": {"python": f"gpu_models.py:{model}", "folder": str(folder)},
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "search": {"lr": {"low": 1e-5, "high": 1e-2, "log": True}, "batch_size": 4},
        "baseline": {"lr": 1e-3},
        "fidelity": {"axis": "steps", "max": STEPS, "reports": 4},
        "budget": {"trials": TRIALS},
        "confirm": {"top": 0},
        "resources": {"gpus": 1 if on_gpu else 0},
        "pruner": "none",
        "sampler": "random",
    }
    job, observer = resolve(spec).job, _Observer()
    with tempfile.TemporaryDirectory(prefix="x5g") as name, ray_cluster() as cluster:
        began = time.monotonic()
        result = run_study(
            job=job,
            job_id="gpu-check",
            storage_url=f"sqlite:///{name}/study.db",
            observer=observer,
            cluster=cluster,
            data_folder=Path(name),
        )
        seconds = time.monotonic() - began
    values = {ended.number: ended.value.number for ended in observer.ended if ended.value.is_finite}
    outcomes = ", ".join(sorted(str(ended.outcome) for ended in observer.ended))
    best = min((value for value in values.values() if value is not None), default=None)
    return Outcome(values.get(0), best, result.device_seconds, seconds, f"{len(observer.ended)} trials: {outcomes}")
