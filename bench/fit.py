"""Memory fit, measured: what is predicted against what training really takes.

    python -m bench.fit predict
    python -m bench.fit compare        # needs: pip install -c constraints.txt '.[bench]'

`predict`: for byte-lm and digits-cnn the predicted peak of training and evaluation beside the true one of torch's CPU
allocator, which reports every allocation to torch.profiler; each figure in a process of its own. `compare`: the whole
phase fit beside Lightning's and accelerate's searches (bench/fit_compare.py).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from workloads.contract import Fidelity, Precision, ProbeConfig
from workloads.memory_prediction import predict
from workloads.open import open_workload
from workloads.trainable import Trainable
from workloads.training import train

STEPS = 3
MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fit", description=__doc__)
    parser.add_argument("what", choices=["predict", "compare"])
    if parser.parse_args().what == "predict":
        compare_predictions()
        return 0
    from bench.fit_compare import compare as compare_searches

    compare_searches("Transformer", 128)
    compare_searches("Convolutional", 128)
    return 0


def compare_predictions() -> None:
    """Print predicted and true peaks in a table."""
    print(f"{'workload':<12}{'precision':<11}{'micro':>6}{'acc':>5}{'predicted MiB':>15}{'true MiB':>11}", end="")
    print(f"{'off':>8}{'predicted in':>14}")
    for name in ("byte-lm", "digits-cnn"):
        workload: Trainable = open_workload(name)  # type: ignore[assignment]  # both are
        precisions: tuple[Precision, ...] = ("fp32", "bf16")
        for precision in precisions:
            for micro_batch, accumulation in ((4, 1), (8, 2), (32, 2), (64, 1), (256, 1)):
                row = compare(workload, configuration(micro_batch, accumulation, precision))
                print(
                    f"{name:<12}{precision:<11}{micro_batch:>6}{accumulation:>5}{row.predicted / MIB:>15.3f}"
                    f"{row.true / MIB:>11.3f}{row.off:>+8.2%}{row.seconds:>12.2f} s",
                    flush=True,
                )


@dataclass(frozen=True, slots=True)
class Row:
    """Two peaks in bytes, and how long the prediction took."""

    predicted: int
    true: int
    seconds: float

    @property
    def off(self) -> float:
        return self.predicted / self.true - 1


def compare(workload: Trainable, config: ProbeConfig) -> Row:
    """Both figures for one configuration."""
    started = time.monotonic()
    predicted = in_child(lambda: predict(workload, config).peak_bytes)
    seconds = time.monotonic() - started
    return Row(predicted, in_child(lambda: allocator_peak(workload, config)), seconds)


def configuration(micro_batch: int, accumulation: int, precision: Precision = "fp32") -> ProbeConfig:
    """The built-ins' defaults but for the batch."""
    return ProbeConfig(
        parameters={"batch_size": micro_batch * accumulation, "lr": 1e-3, "dropout": 0.1},
        derived={"micro_batch": micro_batch, "accumulation": accumulation, "loss_scale": "auto"},
        seed=0,
        fidelity=Fidelity("steps", STEPS, 1),
        device="cpu",
        precision=precision,
        trial=0,
        job_id="bench",
    )


def allocator_peak(workload: Trainable, config: ProbeConfig) -> int:
    """The most bytes that torch's CPU allocator had given out at once while `train` ran its steps."""

    class Last:
        steps = STEPS

        def due(self, step: int) -> bool:
            return step == STEPS

        def report(self, **_: float) -> None: ...

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(workload, replace(config, fidelity=Fidelity("steps", STEPS, 1)), Last())
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.device_type() == DeviceType.CPU:
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def in_child(measure: Callable[[], int]) -> int:
    """What `measure` returns in a fork of this process."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, str(measure()).encode())
            os._exit(0)
        except BaseException as error:
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"a measurement failed (status {status})")
    return int(said)


if __name__ == "__main__":
    sys.exit(main())
