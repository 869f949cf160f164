"""The proof that a micro-batch fits: the loop itself, for some steps and evaluations, at the longest shapes.

The limit is set by whoever starts the process. What the process was about goes out before it happens, so that it is
known of one that was killed.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from statistics import median
from typing import Any, Protocol

import torch
from torch import nn

from workloads.batches import Data
from workloads.contract import Fidelity, Pause, Probe, ProbeConfig, Split
from workloads.horizon import Horizon
from workloads.leaks import LeakWatch
from workloads.longest import AtLongest
from workloads.memory_prediction import predict
from workloads.team import Team
from workloads.trainable import Trainable
from workloads.training import train

STEPS = 20
EVALUATIONS = 2
WARM_UP_STEPS = 5  # not counted in the throughput


class FitProbe(Probe, Protocol):
    """A probe that can also say what it is about to do."""

    def send(self, message: Mapping[str, Any]) -> None: ...


def measure(workload: Trainable, config: ProbeConfig, probe: FitProbe) -> dict[str, Any]:
    """What `config.fit` asks for, in plain values.

    It is `{predict: [micro-batches]}`, `{prove: true}`, `{diagnose: {…}}`, `{rates: {…}}` or `{precisions: {…}}`.
    """
    assert config.fit is not None
    if "diagnose" in config.fit:
        from workloads.diagnosis import diagnose

        def tell(known: list[dict[str, Any]]) -> None:
            probe.send({"type": "health", "values": {"verdicts": known}})

        return {"verdicts": diagnose(workload, config, tell)}
    if "precisions" in config.fit:
        from workloads.precision_test import measure_precisions

        return {"precisions": measure_precisions(workload, config, probe)}
    if "rates" in config.fit:
        from workloads.range_test import measure_rates

        return {"rates": measure_rates(workload, config, probe)}
    if "predict" in config.fit:
        return {"predictions": [asdict(predict_at(workload, config, int(m))) for m in config.fit["predict"]]}
    return prove(workload, config, probe)


def predict_at(workload: Trainable, config: ProbeConfig, micro_batch: int) -> Any:
    """The prediction for this micro-batch, with the accumulation of `config` and at the longest shapes."""
    accumulation = int(config.derived["accumulation"])
    batch_size = micro_batch * accumulation
    sized = replace(
        config,
        parameters={**config.parameters, "batch_size": batch_size},
        derived={**config.derived, "micro_batch": micro_batch},
    )
    return predict(AtLongest(workload, batch_size), sized)


def prove(workload: Trainable, config: ProbeConfig, probe: FitProbe) -> dict[str, Any]:
    """Train `STEPS` steps with `EVALUATIONS` evaluations, then evaluate the test split too.

    With a `checkpoint_dir` it saves its state as a paused trial does, and reads it back before the test split.
    Returns `samples_per_s` of the training and, on a GPU, `peak_bytes` and `allocated_bytes`. The learning rate of
    `config` should be one that cannot diverge.
    """

    def say(stage: str) -> None:
        probe.send({"type": "stage", "stage": stage})

    if is_cuda(config.device) and config.fit is not None:
        torch.cuda.set_per_process_memory_fraction(float(config.fit["memory_fraction"]))
    batch_size = int(config.parameters["batch_size"])
    longest = _Staged(workload, batch_size, say)
    folder = config.checkpoint_dir
    watch = StageProbe(probe, Fidelity("steps", STEPS, EVALUATIONS), say, pauses=folder is not None)
    leaks = LeakWatch(watch, lambda text: probe.send({"type": "note", "name": "memory_growth", "text": text}))
    train_until_pause(longest, replace(config, fidelity=watch.fidelity), leaks)
    leaks.close()
    split: Split = "test" if hasattr(workload, "test_data") else config.split
    if folder is not None:
        Team.current().gathered(None)  # the lead has saved
        again = StageProbe(probe, Fidelity("steps", STEPS + 1, 1), say, f"evaluation of the {split} data")
        saved = _Staged(workload, batch_size, say, "reading the state that was saved")
        train(saved, replace(config, fidelity=again.fidelity, split=split, resume_dir=folder), again)
    elif split == "test":
        once = StageProbe(probe, Fidelity("steps", 1, 1), say, "evaluation of the test data", first_step=STEPS)
        train(longest, replace(config, fidelity=once.fidelity, split=split), once)
    return {"samples_per_s": watch.steps_per_s * batch_size, **device_peaks(config.device)}


def train_until_pause(workload: Trainable, config: ProbeConfig, probe: Probe) -> None:
    """To the end, or to where its state is saved; nothing of it is held afterwards."""
    try:
        train(workload, config, probe)
    except Pause as pause:
        traceback.clear_frames(pause.__traceback__)  # its frame holds the pause, which holds the frame


class StageProbe:
    """Hands the loop's reports on, says before each step and evaluation which it is, and times the steps.

    If it `pauses`, its last report is answered so.
    """

    def __init__(
        self,
        probe: Probe,
        fidelity: Fidelity,
        say: Callable[[str], None],
        evaluation: str = "evaluation",
        first_step: int = 0,
        *,
        pauses: bool = False,
    ) -> None:
        self.fidelity = fidelity
        self._horizon = Horizon.of(fidelity, 1)
        self._probe, self._say, self._evaluation, self._first_step = probe, say, evaluation, first_step
        self._pauses = pauses
        self.steps = self._horizon.steps
        self._began = time.monotonic()
        self._seconds: list[float] = []

    @property
    def steps_per_s(self) -> float:
        """The rate of the steps after the warm-up, without evaluations."""
        seconds = median(self._seconds[WARM_UP_STEPS:] or self._seconds or [0.0])
        return 1 / seconds if seconds > 0 else 0.0

    def due(self, step: int) -> bool:
        self._seconds.append(time.monotonic() - self._began)
        is_due = self._horizon.due(step)
        self._say(f"{self._evaluation} after step {step}" if is_due else f"training step {step + 1}")
        self._began = time.monotonic()
        return is_due

    def report(self, *, step: int, **metrics: float) -> None:
        self._probe.report(step=self._first_step + step, **metrics)
        if self._pauses and self._horizon.is_over(step):
            self._say("saving the state")
            raise Pause("the proof saves its state")
        self._say(f"training step {step + 1}")
        self._began = time.monotonic()


class _Staged(AtLongest):
    """Says what comes before the first step: the data as they are read, and the model."""

    def __init__(
        self, workload: Trainable, count: int, say: Callable[[str], None], then: str = "training step 1"
    ) -> None:
        super().__init__(workload, count)
        self._say, self._then = say, then

    def train_data(self) -> Data:
        self._say("reading the training data")
        return super().train_data()

    def eval_data(self) -> Data:
        self._say("reading the validation data")
        return super().eval_data()

    def test_data(self) -> Data:
        self._say("reading the test data")
        return super().test_data()

    def model(self, config: Mapping[str, Any], /) -> nn.Module:
        self._say("building the model")
        model = super().model(config)
        self._say(self._then)
        return model


def device_peaks(device: str) -> dict[str, int]:
    """On a GPU what all of this process took at most, as the driver sees it, and what its tensors took; else nothing.

    `alloc_retries` counts how often the allocator had to give back what it had reserved to get what was asked for.

    torch keeps what it has reserved, so that what the driver sees at the end is the peak. Memory of other processes on
    the device counts as ours.
    """
    if not is_cuda(device):
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_bytes": max(total - free, torch.cuda.max_memory_reserved()),
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "alloc_retries": int(torch.cuda.memory_stats()["num_alloc_retries"]),
    }


def is_cuda(device: str) -> bool:
    return torch.device(device).type == "cuda"
