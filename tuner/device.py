"""Which device probes run on, found without importing torch."""

from __future__ import annotations

import contextlib
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

BF16_CAPABILITY = 8.0  # Ampere


@dataclass(frozen=True, slots=True)
class Device:
    """`type` as torch names it, `name` as people do; `memory_bytes` is a GPU's own, None for the host."""

    type: Literal["cpu", "cuda"]
    name: str
    capability: float | None = None
    memory_bytes: int | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What probes on this device run with, so that memory is given back in pieces that fit again."""
        return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if self.type == "cuda" else {}

    def precision(self, wanted: str) -> str:
        """What `auto` means here: fp32 on a CPU, bf16 where the GPU has it, else fp16."""
        if wanted != "auto":
            return wanted
        if self.type == "cpu":
            return "fp32"
        return "bf16" if (self.capability or 0.0) >= BF16_CAPABILITY else "fp16"


def find_device(gpus: float) -> Device:
    """The device of a trial that holds `gpus` GPUs."""
    if gpus <= 0:
        return Device("cpu", cpu_name())
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        line = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
        name, capability, memory_mib = (part.strip() for part in line.rsplit(",", 2))
        return Device("cuda", name, float(capability), int(float(memory_mib) * (1 << 20)))
    return Device("cuda", "GPU")


def cpu_name() -> str:
    """The processor's model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "CPU"
