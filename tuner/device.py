"""Which device probes run on, found without importing torch."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tuner.visible_devices import UnknownOrderError

if TYPE_CHECKING:
    from tuner.gpu_library import GpuLibrary


@dataclass(frozen=True, slots=True)
class Device:
    """`type` as torch names it, `name` as people do; `memory_bytes` is a GPU's own, None for the host.

    `has_bf16` is None where the device was not asked or did not tell.
    """

    type: Literal["cpu", "cuda"]
    name: str
    has_bf16: bool | None = None
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
        return "bf16" if self.has_bf16 else "fp16"


def find_device(gpus: float, environ: Mapping[str, str] = os.environ) -> Device:
    """The device of a trial that holds `gpus` GPUs: the first that this process sees, as its driver describes it."""
    if gpus <= 0:
        return Device("cpu", cpu_name())
    from tuner.gpus import open_gpus

    library = open_gpus()
    try:
        with contextlib.suppress(UnknownOrderError, IndexError):
            return _described(library, library.visible(environ)[0])
    finally:
        library.close()
    return Device("cuda", "GPU")


def _described(library: GpuLibrary, uuid: str) -> Device:
    owner = next(gpu for gpu in library.gpus() if uuid in (gpu.uuid, *gpu.slices))
    name = f"{owner.name} (MIG)" if uuid in owner.slices else owner.name
    total = library.read(uuid).values["memory_total_bytes"]
    return Device(
        "cuda",
        f"{name} (simulated)" if library.is_simulated else name,
        library.has_bf16(owner.uuid),
        None if total is None else int(total),
    )


def cpu_name() -> str:
    """The processor's model name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or "CPU"
