"""Which device probes run on, found without importing torch."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.visible_devices import UnknownOrderError, visible_uuids

if TYPE_CHECKING:
    from tuner.nvml import Nvml

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


def find_device(gpus: float, environ: Mapping[str, str] = os.environ) -> Device:
    """The device of a trial that holds `gpus` GPUs: the first that this process sees, as NVML describes it."""
    if gpus <= 0:
        return Device("cpu", cpu_name())
    from tuner.nvml import Nvml

    nvml = Nvml()
    try:
        with contextlib.suppress(UnknownOrderError, IndexError):
            uuid = visible_uuids(nvml.gpus(), environ)[0]
            return _described(nvml, uuid)
    finally:
        nvml.close()
    return Device("cuda", "GPU")


def _described(nvml: Nvml, uuid: str) -> Device:
    owner = next(gpu for gpu in nvml.gpus() if uuid in (gpu.uuid, *gpu.slices))
    name = f"{owner.name} (MIG)" if uuid in owner.slices else owner.name
    total = nvml.read(uuid).values["memory_total_bytes"]
    return Device(
        "cuda",
        f"{name} (simulated)" if nvml.is_simulated else name,
        nvml.capability(owner.uuid),
        None if total is None else int(total),
    )


def cpu_name() -> str:
    """The processor's model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "CPU"
