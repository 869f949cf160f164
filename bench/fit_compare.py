"""The memory fit beside Lightning's batch size finder and accelerate's, under the same limit, really enforced.

Each search runs in a process whose data the kernel caps (RLIMIT_DATA); then the size that it has found trains and
evaluates in a fresh process under the same cap, and its peak is read from outside. The true largest is found by
bisection with the same proof, the gradients of a second micro-batch included, as trials with larger batches have them;
what the peers have found is tried without. What a size takes differs by some percent between warm parents, and does not
rise evenly from size to size, so the true largest is the median of bisections in three of them. Seconds are from an
interpreter that has imported torch (and the peer) to the answer. MALLOC_MMAP_THRESHOLD_=262144 in the environment
takes the heap's holes out of all of it.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench import fit_models
from bench.fit import MIB, in_child
from bench.overhead import NoObserver
from tuner.assignment import Assignment, SlotReport, SlotSetup
from tuner.coordinator import Coordinator
from tuner.device import Device
from tuner.fit_plan import Proof
from tuner.jobspec import ResolvedJob, UserCode
from tuner.probe_process import ProbeHost
from tuner.search import Search
from tuner.slot import start_run
from tuner.spec import resolve
from workloads.out_of_memory import is_out_of_memory

LARGEST = 4096
STEPS = 20
TRUTHS = 3
DEVICE = Device("cpu", "CPU")
ALLOCATOR = {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")}


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has come to; `events` are the runs that were out of memory on the way."""

    way: str
    batch: int
    events: int
    seconds: float
    runs: str = ""


class Slots:
    """One slot without Ray, for a class of `fit_models`."""

    def __init__(self, name: str, limit_mib: float) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="x5b"))
        code = UserCode(str(Path(fit_models.__file__).parent), f"fit_models.py:{name}")
        self.setup = SlotSetup(
            workload=code.label,
            code=code,
            metrics=None,
            metric="val_loss",
            folder=str(self._folder),
            environment={},
            cpus=1.0,
            device_share=1.0,
            gpus=0.0,
            device_name=DEVICE.name,
            probe_seconds=None,
            silence_seconds=600.0,
            host_memory_mib=limit_mib,
        )
        self.host = ProbeHost(self.setup.to_load(), self._folder / "h", ALLOCATOR, 1.0)
        self.host.ensure_ready()

    def __enter__(self) -> Slots:
        return self

    def __exit__(self, *_: object) -> None:
        self.host.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self, assignment: Assignment) -> SlotReport:
        """To its end."""
        run = start_run(self.host, self.setup, assignment)
        while (report := run.step()).end is None:
            pass
        return report

    def peak(self, batch: int, accumulation: int, cap_bytes: int | None = None) -> int | None:
        """The peak of a fresh process that trains with `batch` under the limit; None where it dies or is over."""
        config = {
            "parameters": {"lr": 1e-6, "batch_size": batch * accumulation},
            "derived": {"micro_batch": batch, "accumulation": accumulation, "loss_scale": "auto"},
            "seed": 0,
            "fidelity": {"axis": "steps", "max": STEPS, "reports": 2},
            "device": "cpu",
            "precision": "fp32",
            "trial": -1,
            "job_id": "bench",
            "fit": {"prove": True, "memory_fraction": 0.92},
        }
        report = self.run(Assignment("p", config, False, "prove", cap_bytes=cap_bytes))
        assert report.fit is not None
        return int(report.fit["host_peak_bytes"]) if "samples_per_s" in report.fit else None


def compare(name: str, limit_mib: float) -> None:
    """Print one table."""
    trues = sorted(true_largest(name, limit_mib) for _ in range(TRUTHS))
    true = trues[TRUTHS // 2]
    with Slots(name, limit_mib) as slots:
        ways = [ours(slots, name, limit_mib)]
        for search in (lightning_power, lightning_binsearch, accelerate):
            ways.append(in_limited_child(search, name, limit_mib))
        print(f"\n{name}, limit {limit_mib:g} MiB: the largest batch with a peak under 92 % is {true} of {trues}")
        print(f"{'':<22}{'batch':>6}{'of true':>9}{'peak/limit':>12}{'OOM':>5}{'seconds':>9}  runs")
        for found in ways:
            peak = slots.peak(found.batch, 2 if found.way == "x5tune" else 1) if found.batch else None
            share = "dies" if peak is None else f"{peak / (limit_mib * MIB):.1%}"
            line = f"{found.way:<22}{found.batch:>6}{found.batch / true:>9.1%}{share:>12}{found.events:>5}"
            print(f"{line}{found.seconds:>9.1f}  {found.runs}", flush=True)


def true_largest(name: str, limit_mib: float) -> int:
    """By bisection, in a warm parent of its own."""
    cap_bytes = int(0.92 * limit_mib * MIB)
    with Slots(name, limit_mib) as slots:
        return bisect(lambda batch: slots.peak(batch, 2, cap_bytes) is not None)


def job_for(name: str, limit_mib: float) -> ResolvedJob:
    folder = Path(fit_models.__file__).parent
    return resolve(
        {
            "workload": {"python": f"fit_models.py:{name}", "folder": str(folder)},
            "objective": {"metric": "val_loss", "direction": "minimize"},
            "search": {"batch_size": {"low": 1, "high": LARGEST, "int": True}, "lr": 1e-3},
            "baseline": {"batch_size": 16},
            "fidelity": {"axis": "samples", "max": 4096, "reports": 2},
            "budget": {"trials": 1},
            "confirm": {"seeds": 0},
            "limits": {"host_memory_mib": limit_mib},
            "environment": ALLOCATOR,
        }
    ).job


def ours(slots: Slots, name: str, limit_mib: float) -> Found:
    """Phase `fit` as a job runs it, one run after the other in one slot."""
    import optuna

    class Observer(NoObserver):
        def stop_requested(self) -> None:
            return None

        def fit_measured(self, fit: Mapping[str, Any], probe: Any) -> None:
            self.fit = fit

    observer, job = Observer(), job_for(name, limit_mib)
    search = Search(job, "bench", optuna.storages.InMemoryStorage())
    coordinator = Coordinator(job, "bench", search, observer, device=DEVICE, slots=1)
    began = time.monotonic()
    coordinator.begin()
    while (assignment := coordinator.next()) is not None and assignment.fit is not None:
        coordinator.on_report(assignment.key, slots.run(assignment))
    proofs = [Proof(**proof) for proof in observer.fit["proofs"]]
    tried = ", ".join(str(proof.micro_batch) for proof in proofs)
    runs = f"{len(observer.fit['predictions'])} predictions, {len(proofs)} proofs: {tried}"
    died = sum(proof.peak_bytes is None for proof in proofs)
    return Found("x5tune", observer.fit["micro_batch"] or 0, died, time.monotonic() - began, runs)


def in_limited_child(search: Callable[[str], tuple[int, int]], name: str, limit_mib: float) -> Found:
    """A peer's search in a process of its own under the limit; its imports are not counted."""
    import_module("accelerate.utils" if search is accelerate else "lightning.pytorch")
    began = time.monotonic()

    def measure() -> int:
        torch.set_num_threads(1)
        held = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        limit = held + int(limit_mib * MIB)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batch, events = search(name)
        return batch * 1000 + events

    try:
        said = in_child(measure)
    except RuntimeError:
        return Found(search.__name__.replace("_", " "), 0, 1, time.monotonic() - began, "the search itself died")
    return Found(search.__name__.replace("_", " "), said // 1000, said % 1000, time.monotonic() - began)


def lightning_power(name: str) -> tuple[int, int]:
    return _lightning(name, "power")


def lightning_binsearch(name: str) -> tuple[int, int]:
    return _lightning(name, "binsearch")


def _lightning(name: str, mode: str) -> tuple[int, int]:
    pl, tuning = import_module("lightning.pytorch"), import_module("lightning.pytorch.tuner")
    scaling = import_module("lightning.pytorch.tuner.batch_size_scaling")
    from torch.utils.data import DataLoader, TensorDataset

    trained = getattr(fit_models, name)()
    events = 0
    judge = scaling.is_oom_error

    def counting(error: BaseException) -> bool:
        nonlocal events
        is_oom = bool(judge(error))
        events += is_oom
        return is_oom

    scaling.is_oom_error = counting  # type: ignore[attr-defined]

    class Module(pl.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.net = trained.model({})

        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*trained.train_data()), batch_size=self.batch_size)

        def training_step(self, batch: Any, _: int) -> Any:
            return trained.loss(self.net, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-6)

    module = Module()
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(prefix="x5l"),
    )
    found = tuning.Tuner(trainer).scale_batch_size(module, mode=mode, steps_per_trial=3, init_val=2, max_trials=25)
    return int(found or 0), events


def accelerate(name: str) -> tuple[int, int]:
    """`find_executable_batch_size` around a training of `STEPS` steps, from `LARGEST` downwards."""
    find_executable_batch_size = import_module("accelerate.utils").find_executable_batch_size
    trained = getattr(fit_models, name)()
    events = 0

    @find_executable_batch_size(starting_batch_size=LARGEST)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        nonlocal events
        try:
            model = trained.model({})
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
            data = trained.train_data()
            for _ in range(STEPS):
                optimizer.zero_grad()
                trained.loss(model, tuple(tensor[:batch_size] for tensor in data)).backward()
                optimizer.step()
        except Exception as error:
            events += is_out_of_memory(error)
            raise
        return batch_size

    return int(train()), events


def bisect(fits: Callable[[int], bool]) -> int:
    """The largest batch up to LARGEST that fits."""
    low, high = 1, LARGEST + 1
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
