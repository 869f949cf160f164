"""One look at a GPU: what x5tune foretells and reads, beside what the machine itself says. At most six minutes.

    python -m bench.gpu_check

Prints one table. Needs Python and torch; what needs more (nvidia-ml-py, Ray, Optuna) is left out with its reason.
Without a GPU it runs shortened, on small models, and says so. Each section runs in a process of its own, for a bounded
time: one that fails costs no other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from bench import gpu_models
from workloads.contract import Fidelity, Precision, ProbeConfig
from workloads.trainable import Trainable

MIB = 1 << 20
STEPS = 4
ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of ours beside the machine's; None where there is none, and `note` says why."""

    what: str
    ours: float | None
    measured: float | None
    unit: str
    note: str = ""

    @property
    def off(self) -> str:
        if self.ours is None or not self.measured:
            return ""
        return f"{self.ours / self.measured - 1:+.1%}"


def has_gpu() -> bool:
    return torch.cuda.is_available()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu_check", description=__doc__)
    parser.add_argument("--section", choices=SECTIONS, help=argparse.SUPPRESS)
    section = parser.parse_args().section
    if section is not None:
        for row in SECTIONS[section][0]():
            print(json.dumps(asdict(row)), flush=True)
        return 0
    device = torch.cuda.get_device_name() if has_gpu() else "no GPU: shortened, small models on the CPU"
    print(f"torch {torch.__version__}, {device}", flush=True)
    print(f"{'section':<12}{'what':<44}{'ours':>12}{'measured':>12} {'unit':<8}{'off':>8}  note")
    began, is_whole = time.monotonic(), True
    for name, (_, limit_s) in SECTIONS.items():
        is_whole &= run_section(name, limit_s)
    print(f"took {time.monotonic() - began:.0f} s")
    return 0 if is_whole else 1


def run_section(name: str, limit_s: float) -> bool:
    """Print a section's rows; False when it did not come to its end."""
    command = [sys.executable, "-m", "bench.gpu_check", "--section", name]
    why = ""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False)
        said, status = done.stdout, done.returncode
        why = (done.stderr.strip().splitlines() or ["no word"])[-1] if status else ""
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else ""  # bytes whatever `text` says
        why = f"did not end within {limit_s:.0f} s"
    for line in said.splitlines():
        with contextlib.suppress(ValueError):
            show(name, Row(**json.loads(line)))
    if why:
        show(name, Row("(ended early)", None, None, "", why[:120]))
    return not why


def show(section: str, row: Row) -> None:
    def figure(value: float | None) -> str:
        return "–" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"

    figures = f"{figure(row.ours):>12}{figure(row.measured):>12} {row.unit:<8}{row.off:>8}"
    print(f"{section:<12}{row.what:<44}{figures}  {row.note}", flush=True)


def configuration(micro_batch: int, precision: Precision) -> ProbeConfig:
    return ProbeConfig(
        parameters={"batch_size": micro_batch, "lr": 3e-4},
        derived={"micro_batch": micro_batch, "accumulation": 1, "loss_scale": "auto"},
        seed=0,
        fidelity=Fidelity("steps", STEPS, 1),
        device="cuda" if has_gpu() else "cpu",
        precision=precision,
        trial=0,
        job_id="bench",
    )


def memory() -> Iterator[Row]:
    """The predicted peak of training beside what the allocator gave out, what it took, and what NVML says is in use."""
    cases: list[tuple[str, Trainable, int, Precision]] = [
        ("GPT 124 M", gpu_models.Gpt124M(), 8, "bf16"),
        ("GPT 124 M", gpu_models.Gpt124M(), 32, "bf16"),
        ("ResNet-50", gpu_models.ResNet50(), 64, "fp32"),
    ]
    if not has_gpu():
        cases = [
            ("small GPT", gpu_models.TinyGpt(), 8, "fp32"),
            ("small GPT", gpu_models.TinyGpt(), 32, "fp32"),
            ("small ResNet", gpu_models.TinyResNet(), 16, "fp32"),
        ]
    for name, workload, micro_batch, precision in cases:
        yield from memory_of(f"{name}, micro-batch {micro_batch}, {precision}", workload, micro_batch, precision)


def memory_of(name: str, workload: Trainable, micro_batch: int, precision: Precision) -> Iterator[Row]:
    from bench.fit import allocator_peak, in_child
    from workloads.memory_prediction import predict

    config = configuration(micro_batch, precision)
    if not has_gpu():
        predicted = in_child(lambda: predict(workload, config).peak_bytes) / MIB
        yield Row(f"{name}: allocated", predicted, in_child(lambda: allocator_peak(workload, config)) / MIB, "MiB")
        return
    # Fake tensors live on the CPU, so the prediction may share this process with CUDA.
    predicted = predict(workload, config).peak_bytes / MIB
    allocated, reserved, held = train_on_gpu(workload, config)
    yield Row(f"{name}: allocated", predicted, allocated, "MiB")
    yield Row(f"{name}: reserved", predicted, reserved, "MiB", "what the allocator takes is more: judged by proof")
    yield Row(f"{name}: NVML", predicted, held, "MiB", "the CUDA context comes on top")


def train_on_gpu(workload: Trainable, config: ProbeConfig) -> tuple[float, float, float | None]:
    """Peaks in MiB: allocated, reserved, and the device's memory in use after the last step."""
    from workloads.training import train

    seen: list[float | None] = []

    class Last:
        steps = STEPS

        def due(self, step: int) -> bool:
            return step == STEPS

        def report(self, **_: float) -> None:
            seen.append(smi("memory.used"))

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    train(workload, config, Last())
    allocated, reserved = torch.cuda.max_memory_allocated() / MIB, torch.cuda.max_memory_reserved() / MIB
    return allocated, reserved, seen[-1]


def loss_scale() -> Iterator[Row]:
    """The share of gradients that fp16 flushes to zero at a loss scale: from the histogram, and counted."""
    from workloads.loss_scale import ScaleChoice
    from workloads.magnitudes import Magnitudes

    workload = gpu_models.Gpt124M() if has_gpu() else gpu_models.TinyGpt()
    device = torch.device("cuda" if has_gpu() else "cpu")
    torch.manual_seed(0)
    model = workload.model({}).to(device)
    batch = (workload.train_data()[0][:4].to(device),)
    gradients = torch.autograd.grad(workload.loss(model, batch), list(model.parameters()), allow_unused=True)
    magnitudes = Magnitudes()
    magnitudes.add(gradients)
    choice = ScaleChoice.of(magnitudes, magnitudes)
    assert choice is not None
    for name, scale in (("1", 1.0), ("2048", 2048.0), (f"chosen, {choice.scale:g}", choice.scale)):
        lost = total = 0
        for gradient in gradients:
            if gradient is not None:
                total += int((gradient != 0).sum())
                lost += int(((gradient * scale).half() == 0).logical_and(gradient != 0).sum())
        yield Row(f"flushed to zero at scale {name}", 100 * magnitudes.flushed(scale), 100 * lost / total, "%")


def telemetry() -> Iterator[Row]:
    """What our reader says of the first GPU, beside nvidia-smi."""
    if not has_gpu():
        yield Row("NVML beside nvidia-smi", None, None, "", "no GPU")
        return
    try:
        from tuner.nvml import Nvml
    except ImportError as error:
        yield Row("NVML beside nvidia-smi", None, None, "", f"{error.name} is not installed: pip install nvidia-ml-py")
        return
    nvml = Nvml()
    uuid = str(smi_text("uuid"))
    values, reasons = (reading := nvml.read(uuid)).values, reading.reasons
    for name, query, factor, unit in (
        ("memory_used_bytes", "memory.used", 1 / MIB, "MiB"),
        ("memory_total_bytes", "memory.total", 1 / MIB, "MiB"),
        ("power_w", "power.draw", 1.0, "W"),
        ("temperature_c", "temperature.gpu", 1.0, "°C"),
        ("sm_clock_mhz", "clocks.sm", 1.0, "MHz"),
        ("memory_clock_mhz", "clocks.mem", 1.0, "MHz"),
        ("utilisation", "utilization.gpu", 100.0, "%"),
    ):
        value = values[name]
        yield Row(name, None if value is None else value * factor, smi(query), unit, str(reasons.get(name, "")))
    yield from energy_of(nvml, uuid)
    nvml.close()


def energy_of(nvml: Any, uuid: str) -> Iterator[Row]:
    """Two seconds of matrix products: the counter's difference, beside the mean power that nvidia-smi tells."""
    before, began, powers = nvml.read(uuid).values["energy_j"], time.monotonic(), list[float]()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while time.monotonic() - began < 2.0:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()
        power = smi("power.draw")
        powers += [] if power is None else [power]
    after, seconds = nvml.read(uuid).values["energy_j"], time.monotonic() - began
    ours = None if before is None or after is None else after - before
    yield Row("energy of 2 s of work", ours, statistics.mean(powers) * seconds if powers else None, "J")


def forked_start() -> Iterator[Row]:
    """How soon a forked probe has done its first work on the device, beside a fresh interpreter."""
    try:
        from tuner.probe_process import Exited, ProbeHost, Report
    except ImportError as error:
        yield Row("start of a probe", None, None, "", f"{error.name} is not installed: pip install 'x5tune[worker]'")
        return
    device = "cuda" if has_gpu() else "cpu"
    work = f"torch.ones(8, device={device!r}).sum().item()"
    report = "probe.report(step=1, val_loss=time.monotonic())"
    code = f"import torch, time\ndef train(config, probe):\n    {work}\n    {report}\n"
    forked, fresh = list[float](), list[float]()
    config = {**asdict(configuration(1, "fp32")), "fidelity": {"axis": "steps", "max": 1, "reports": 1}}
    with tempfile.TemporaryDirectory(prefix="x5g") as name:
        (Path(name) / "work.py").write_text(code)
        host = ProbeHost({"target": "work.py:train", "folder": name, "metric": "val_loss"}, Path(name) / "h", {}, 1.0)
        try:
            host.ensure_ready()
            for _ in range(5):
                began = time.monotonic()
                host.start(config, {})
                while not isinstance(event := host.wait(60), Exited):
                    if isinstance(event, Report):
                        forked.append(float(event.message["metrics"]["val_loss"]) - began)
                        host.answer("continue")
                    assert event is not None
        finally:
            host.close()
    for _ in range(3):
        began = time.monotonic()
        script = f"import torch, time; {work}; print(time.monotonic())"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
        fresh.append(float(done.stdout) - began)
    what = f"first work on {device}: forked, fresh interpreter"
    yield Row(what, 1e3 * statistics.median(forked), 1e3 * statistics.median(fresh), "ms")


def tuning() -> Iterator[Row]:
    """A small job on the GPT through the whole engine: does a recipe come out, and what did it take."""
    try:
        import optuna  # noqa: F401
        import ray  # noqa: F401

        from bench.gpu_job import run_small_job
    except ImportError as error:
        yield Row("a small job", None, None, "", f"{error.name} is not installed: pip install 'x5tune[worker]'")
        return
    found = run_small_job("Gpt124M" if has_gpu() else "TinyGpt", on_gpu=has_gpu())
    yield Row("baseline, best loss", found.best, found.baseline, "nats", found.note)
    yield Row("device seconds, wall seconds", found.device_seconds, found.seconds, "s")


def smi_text(query: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError, IndexError):
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
    return None


def smi(query: str) -> float | None:
    try:
        return float(smi_text(query) or "")
    except ValueError:
        return None


SECTIONS: dict[str, tuple[Callable[[], Iterator[Row]], float]] = {
    "memory": (memory, 120.0),
    "loss-scale": (loss_scale, 40.0),
    "telemetry": (telemetry, 30.0),
    "start": (forked_start, 50.0),
    "tuning": (tuning, 120.0),
}

if __name__ == "__main__":
    sys.exit(main())
