"""Batches of a dataset are the same whoever makes them, and slow ones are made by workers ahead of the training."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.workloads.support import TinyWorkload, config_for, probe_for
from tests.workloads.test_loss_scale import TalkingProbe
from workloads.batches import Data
from workloads.loading import LEAST_WAIT_S, WAIT_SHARE, Loader, more
from workloads.training import train


class Augmented:
    """Samples that torch's, Python's and NumPy's random numbers change; each takes `sleep_s`."""

    def __init__(self, rows: tuple[torch.Tensor, torch.Tensor], sleep_s: float) -> None:
        self.rows, self.sleep_s = rows, sleep_s

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, index: int, /) -> dict[str, torch.Tensor]:
        import numpy as np

        time.sleep(self.sleep_s)
        noise = 0.1 * torch.randn(6) + random.random() + float(np.random.rand())
        return {"features": self.rows[0][index] + noise, "label": self.rows[1][index]}


class AugmentedWorkload(TinyWorkload):
    """Its model has dropout: the training's own random numbers must not depend on the data's."""

    def __init__(self, sleep_s: float = 0.0) -> None:
        super().__init__()
        self.sleep_s = sleep_s

    def train_data(self) -> Data:
        assert isinstance(self.rows, tuple)
        return Augmented(self.rows, self.sleep_s)

    def loss(self, model: nn.Module, batch: Mapping[str, torch.Tensor], /) -> torch.Tensor:
        return F.cross_entropy(model(batch["features"]).float(), batch["label"])


def batch(number: int) -> tuple[float, float, torch.Tensor]:
    return random.random(), float(number), torch.rand(1000)[::100]


def large_batch(number: int) -> tuple[float, float, torch.Tensor]:
    return random.random(), float(number), torch.rand(1_000_000)


def same(found: Any, wanted: Any) -> bool:
    return all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_make_the_batches_that_would_be_made_here_also_when_they_come_in_the_middle(workers: int) -> None:
    alone, helped = Loader(batch, 7, most=4), Loader(batch, 7, most=4)
    wanted = [alone.get(number) for number in range(12)]
    torch.manual_seed(1)
    before = torch.rand(1)

    found = [helped.get(number) for number in range(4)]
    helped.work_with(workers)
    found += [helped.get(number) for number in range(4, 8)]
    helped.work_with(1)
    found += [helped.get(number) for number in range(8, 12)]
    helped.close()

    assert all(same(*pair) for pair in zip(found, wanted, strict=True))
    torch.manual_seed(1)
    alone.get(0)
    assert torch.equal(torch.rand(1), before), "the training's own random numbers are left alone"


def test_workers_send_sparse_batches_and_wait_also_where_many_files_are_open() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    loader = Loader(lambda number: (torch.eye(3) * number).to_sparse(), 7, most=1)
    try:
        loader.work_with(1)
        assert [float(loader.get(number).to_dense().sum()) for number in range(3)] == [0.0, 3.0, 6.0]
        assert loader.adapt(0.0, 0.0) == []  # nobody was given up
    finally:
        loader.close()
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def losses(workload: AugmentedWorkload, threads: int = 2, **changes: Any) -> tuple[list[float], list[str]]:
    config = replace(config_for(maximum=640, dropout=0.2, **changes), derived={"threads": threads})
    probe = TalkingProbe(probe_for(config).horizon)
    train(workload, config, probe)
    return probe.values("train_loss"), [note["name"] for note in probe.said if note["type"] == "note"]


def test_data_that_keep_the_training_waiting_get_more_workers_step_by_step_and_the_losses_stay_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workloads.loading.WINDOW_S", 0.1)
    slow, notes = losses(AugmentedWorkload(sleep_s=0.001))
    monkeypatch.setattr("workloads.loading.WAIT_SHARE", 1.0)
    alone, without = losses(AugmentedWorkload())
    assert notes == ["loader_workers_1", "loader_workers_2"]
    assert without == []
    assert slow == alone


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_worker_that_fails_is_done_without(sig: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.loading.PATIENCE_S", 0.2)
    alone, helped = Loader(large_batch, 7, most=1), Loader(large_batch, 7, most=1)
    helped.work_with(1)
    helped.get(0)
    os.kill(helped._workers[0]._pid, sig)
    found = [helped.get(number) for number in range(1, 5)]
    assert all(same(*pair) for pair in zip(found, [alone.get(number) for number in range(1, 5)], strict=True))
    assert [name for name, _ in helped.adapt(0.0, 0.0)] == ["loader_workers_given_up"]
    assert helped.adapt(50.0, 60.0) == []


def test_a_worker_that_ends_is_noticed_though_a_process_of_its_dataset_lives_on() -> None:
    read, write = os.pipe()

    def forks(number: int) -> Any:
        if number == 1 and os.getpid() != ours:
            if os.fork() == 0:
                os.read(read, 1)  # until the test is over; until then it holds the worker's pipe open too
            os._exit(0)
        return number

    ours = os.getpid()
    loader = Loader(forks, 7, most=1)
    try:
        loader.work_with(1)
        assert [loader.get(number) for number in range(3)] == [0, 1, 2]
    finally:
        os.write(write, b"x")
        loader.close()
    assert loader.adapt(0.0, 0.0) == [
        ("loader_workers_given_up", "batches are made without workers again: a loader worker has ended")
    ]


def test_an_error_of_the_dataset_is_raised_here() -> None:
    def broken(number: int) -> Any:
        raise KeyError(f"sample {number}")

    loader = Loader(broken, 7, most=1)
    loader.work_with(1)
    with pytest.raises(KeyError, match="sample 0"):
        loader.get(0)


def test_batches_that_cannot_be_sent_are_made_here() -> None:
    loader = Loader(lambda number: lambda: number, 7, most=1)
    loader.work_with(1)
    assert loader.get(0)() == 0


def test_workers_end_with_the_run(tmp_path: Path) -> None:
    loader = Loader(batch, 7, most=2)
    loader.work_with(2)
    pids = [worker._pid for worker in loader._workers]
    loader.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("workers", "share", "wait_s", "wanted"),
    [
        (0, 0.9, 0.1, 1),
        (1, 0.9, 0.1, 2),
        (4, 0.9, 0.1, 6),
        (6, 0.9, 0.1, 6),
        (1, WAIT_SHARE / 2, 0.1, 1),
        (0, 0.9, LEAST_WAIT_S / 2, 0),
    ],
)
def test_workers_double_up_to_the_ceiling_where_waiting_is_worth_it(
    workers: int, share: float, wait_s: float, wanted: int
) -> None:
    assert more(workers, 6, share, wait_s) == wanted
