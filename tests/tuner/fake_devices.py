"""GPUs that are none: libraries in the place of the vendors', compiled here, which serve what a file says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
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


APART = Path(sys.prefix) / "apart"
"""Where `scripts/bootstrap` puts AMD's Python module, for PYTHONPATH."""
AMD_A, AMD_B = "GPU-1111222233334444", "GPU-5555666677778888"
GOOD_AMD = {
    "uuid": AMD_A,
    "name": "AMD Instinct MI300X",
    "serial": "1111222233334444",
    "version": str(0x942),
    "hip_id": "0",
    "utilisation": "87",
    "memory_total": str(192 << 30),
    "memory_used": str(70 << 30),
    "power_now": "650",
    "power": "600",
    "hotspot": "71",
    "temperature": "61",
    "sm_clock": "2100",
    "memory_clock": "1300",
    "energy": "1000000000",
    "link_read": "1000",
    "link_written": "2000",
    "pcie": "8000",
    "violated": "01100",
}


def compiled(folder: Path, *flags: str) -> Path:
    """NVML's stand-in (`fake_nvml.c`) in `folder`, for LD_LIBRARY_PATH."""
    return _compiled(folder / "libnvidia-ml.so.1", Path(__file__).with_name("fake_nvml.c"), *flags)


def compiled_amd(folder: Path, *, without: str = "") -> Path:
    """The stand-in of AMD's (`fake_amd_smi.c`) in `folder`; `without` one of the calls that its Python module binds."""
    source = Path(__file__).with_name("fake_amd_smi.c").read_text()
    binding = (APART / "amdsmi" / "amdsmi_wrapper.py").read_text()
    bound = sorted(set(re.findall(r"\['libamd_smi.so'\]\.(\w+)", binding)) - set(re.findall(r"int (\w+)\(", source)))
    rest = "".join(f"int {call}(void) {{ return NOT_SUPPORTED; }}\n" for call in bound if call != without)
    whole = folder / "amd_smi.c"
    whole.write_text(source + rest)
    return _compiled(folder / "libamd_smi.so", whole)


def _compiled(library: Path, source: Path, *flags: str) -> Path:
    command: list[str | Path] = ["cc", "-shared", "-fPIC", f"-I{Path(__file__).parent}", *flags, "-o", library, source]
    subprocess.run(command, check=True, timeout=60)
    return library.parent


def ask(script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """What a script prints as JSON, in a process of its own: the libraries are loaded once in each."""
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def devices(*each: Mapping[str, str], count: int | None = None) -> str:
    """The file of these devices; those beyond `count` are MIG devices."""
    lines = [f"-1.count={len(each) if count is None else count}"]
    lines += [f"{number}.{key}={value}" for number, device in enumerate(each) for key, value in device.items()]
    return "\n".join(lines) + "\n"
