"""GPUs that are none: a library in NVML's place, compiled here, which serves what a file says (see `fake_nvml.c`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

HAS_NO_COMPILER = shutil.which("cc") is None and not os.environ.get("CI")
"""In CI a missing compiler is a failure, no reason to skip."""
A, B, SLICE = "GPU-aaaa1111", "GPU-bbbb2222", "MIG-cccc3333"
GOOD = {
    "uuid": A,
    "name": "NVIDIA H100",
    "utilisation": "87",
    "memory_total": str(80 << 30),
    "memory_used": str(70 << 30),
    "power": "650500",
    "temperature": "61",
    "sm_clock": "1755",
    "memory_clock": "2619",
    "throttle": str(0x4 | 0x20),
    "energy": "123456789",
    "nvlink_sent": "1000",
    "nvlink_received": "2000",
    "pcie_sent": "1500",
    "pcie_received": "2500",
}


def compiled(folder: Path, *flags: str) -> Path:
    """The library in `folder`, for LD_LIBRARY_PATH."""
    source = Path(__file__).with_name("fake_nvml.c")
    command: list[str | Path] = ["cc", "-shared", "-fPIC", *flags, "-o", folder / "libnvidia-ml.so.1", source]
    subprocess.run(command, check=True, timeout=60)
    return folder


def devices(*each: Mapping[str, str], count: int | None = None) -> str:
    """The file of these devices; those beyond `count` are MIG devices."""
    lines = [f"-1.count={len(each) if count is None else count}"]
    lines += [f"{number}.{key}={value}" for number, device in enumerate(each) for key, value in device.items()]
    return "\n".join(lines) + "\n"
