"""What a machine needs to run probes: Python, torch and its device, Ray, room, and rights."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tuner.checkup import GIB, MIB, Check, Finding, ok, problem, reason, warning
from tuner.cluster import CONNECT_S, OBJECT_STORE_BYTES
from tuner.device import cpu_name
from tuner.gpu_library import GpuLibrary
from tuner.probe_process import isolation_prefix
from tuner.visible_devices import UnknownOrderError

WORKER = "pip install 'x5tune[worker]'; or run the API only: x5tune serve --no-runner"
EXTRAS = ("worker", "dashboard", "postgres", "tensorboard")
LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 6)
RAY = (2, 60)
LEAST_FREE_BYTES, SCARCE_FREE_BYTES = 256 * MIB, 4 * GIB
SCARCE_SHM_BYTES = OBJECT_STORE_BYTES + 176 * MIB
NVIDIA = "0x10de"
NO_DRIVER = "none: no NVIDIA driver"
PROC_DRIVER = Path("/proc/driver/nvidia/version")
AMD_DEVICE = Path("/dev/kfd")
NO_AMD_DRIVER = "none: no AMD driver"
GET_TORCH = "Install a torch for this GPU: https://pytorch.org/get-started/locally"


def machine_checks(ray_address: str | None) -> list[Check]:
    """The checks that need no database. `ray_address` is the cluster's, None for an embedded Ray."""
    return [
        Check("python", look_at_python),
        Check("torch", look_at_torch),
        Check("driver", look_at_driver),
        Check("nvml", look_at_nvml),
        Check("amd-smi", look_at_amd_smi),
        Check("ray", lambda: look_at_ray(ray_address)),
        Check("temporary files", look_at_temporary_files),
        Check("shared memory", look_at_shared_memory),
        Check("namespaces", look_at_namespaces),
        *(Check(f"extra {name}", partial(look_at_extra, name)) for name in EXTRAS),
    ]


def look_at_python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}, on {platform.platform(terse=True)}"
    if sys.version_info < LEAST_PYTHON:
        return problem(found, f"Install Python {_dotted(LEAST_PYTHON)} or later.")
    if sys.maxsize < 1 << 32:
        return problem(f"{found}, 32 bits", "Install a Python of 64 bits: torch has no other.")
    return ok(found)


def look_at_torch() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return problem("not installed", WORKER)
    try:
        import torch
    except Exception as error:
        return problem(f"cannot be imported: {reason(error)}", "pip install --force-reinstall torch")
    found = f"{torch.__version__}, {_build(torch.version.cuda, getattr(torch.version, 'hip', None))}"
    if numbers(torch.__version__) < LEAST_TORCH:
        return problem(found, f"pip install 'torch>={_dotted(LEAST_TORCH)}'")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        return _without_device(
            found, torch.version.cuda or getattr(torch.version, "hip", None), [reason_of(each) for each in said]
        )
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    try:
        for index in range(count):  # a build without code for this GPU says so only when something runs
            torch.ones(8, device=f"cuda:{index}").sum().item()
    except Exception as error:
        return problem(f"{found}; {names} cannot be used: {reason(error)}", f"{GET_TORCH}; or free the GPU.")
    return ok(f"{found}; {names}")


def _without_device(found: str, runtime: str | None, said: Sequence[str]) -> Finding:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None and hidden.strip() in ("", "-1"):
        return ok(f"{found}; CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU, trials run on the CPU")
    if not PROC_DRIVER.exists() and not AMD_DEVICE.exists():
        return ok(f"{found}; no GPU, trials run on the CPU ({cpu_name()})")
    if runtime is None:
        maker = "NVIDIA" if PROC_DRIVER.exists() else "AMD"
        return warning(f"{found}; there is a GPU of {maker}'s that it cannot use", GET_TORCH)
    return warning(f"{found}; no GPU can be used: {said[0] if said else 'torch gives no reason'}", GET_TORCH)


def reason_of(said: warnings.WarningMessage) -> str:
    return " ".join(str(said.message).split())[:300]


def look_at_driver() -> Finding:
    if PROC_DRIVER.exists():
        match = re.search(r"Module.*?\s(\d+(\.\d+)+)", PROC_DRIVER.read_text())
        version = match[1] if match else "of an unknown version"
        if not any(Path("/dev").glob("nvidia[0-9]*")):
            return warning(f"NVIDIA {version}, but no device in /dev", "Start the container with --gpus all.")
        return ok(f"NVIDIA {version}")
    cards = [card for card in Path("/sys/bus/pci/devices").glob("*") if _is_nvidia_gpu(card)]
    if cards:
        return warning(f"no driver for the NVIDIA GPU at {cards[0].name}", "Install NVIDIA's driver.")
    return ok("none: no NVIDIA GPU")


def _is_nvidia_gpu(card: Path) -> bool:
    try:
        is_display = (card / "class").read_text().startswith("0x03")
        return is_display and (card / "vendor").read_text().strip() == NVIDIA
    except OSError:
        return False


def look_at_nvml() -> Finding:
    """Whether the GPUs can be asked what they do, and which of them a job here sees."""
    if importlib.util.find_spec("pynvml") is None:
        return warning("nvidia-ml-py is not installed", WORKER) if PROC_DRIVER.exists() else ok(NO_DRIVER)
    from tuner.nvml import Nvml

    nvml = Nvml()
    if nvml.absent is not None:
        if not PROC_DRIVER.exists():
            return ok(NO_DRIVER)
        action = (
            "In a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility; after an update of the driver restart the "
            "machine."
        )
        return warning(f"cannot be used: {nvml.absent}", action)
    return _gpus_told(nvml)


def look_at_amd_smi() -> Finding:
    """The same of AMD's GPUs. Its module is ROCm's and has to fit the library that is installed."""
    if importlib.util.find_spec("amdsmi") is None:
        action = "Install the module that ROCm has brought: pip install /opt/rocm/share/amd_smi"
        return (
            warning("the Python module amdsmi is not installed", action) if AMD_DEVICE.exists() else ok(NO_AMD_DRIVER)
        )
    from tuner.amd_smi import AmdSmi

    amd = AmdSmi()
    if amd.absent is None:
        return _gpus_told(amd)
    if AMD_DEVICE.exists():
        action = "Install the module of this ROCm: pip install /opt/rocm/share/amd_smi"
    else:
        action = "Without AMD's library Ray cannot be imported beside it: pip uninstall amdsmi"
    return warning(f"cannot be used: {amd.absent}", action)


def _gpus_told(library: GpuLibrary) -> Finding:
    gpus = library.gpus()
    told = [gpu.name + _unread(library.read(gpu.uuid).reasons) for gpu in gpus]
    found = f"{'simulated: ' if library.is_simulated else ''}{'; '.join(told) or 'no GPU'}"
    try:
        visible = library.visible(os.environ)
    except UnknownOrderError as error:
        return warning(found, str(error))
    finally:
        library.close()
    return ok(found if len(visible) == len(gpus) else f"{found}; visible to jobs: {', '.join(visible) or 'none'}")


def _unread(reasons: Mapping[str, str]) -> str:
    without = ", ".join(f"{name} {reason}" for name, reason in reasons.items())
    return f" (without {without})" if without else ""


def look_at_ray(address: str | None) -> Finding:
    if importlib.util.find_spec("ray") is None:
        return problem("not installed", WORKER)
    try:
        import ray
        from ray import tune as _tune  # noqa: F401 - it comes with an extra of Ray's
    except Exception as error:
        return problem(
            f"cannot be imported: {reason(error)}", f"pip install --force-reinstall 'ray[tune]~={_dotted(RAY)}.0'"
        )
    if numbers(ray.__version__)[:2] != RAY:
        return problem(
            f"{ray.__version__}, this version needs {_dotted(RAY)}", f"pip install 'ray[tune]~={_dotted(RAY)}.0'"
        )
    host, _, port = (address or "").rpartition(":")
    if not port.isdigit():
        return ok(f"{ray.__version__}, {'a cluster that it finds itself' if address == 'auto' else 'one of our own'}")
    try:
        socket.create_connection((host.removeprefix("ray://").strip("[]"), int(port)), CONNECT_S).close()
    except OSError as error:
        action = "Start the cluster's head there, or correct X5TUNE_RAY_ADDRESS."
        return problem(f"{ray.__version__}; nothing answers at {address}: {reason(error)}", action)
    return ok(f"{ray.__version__}, a cluster at {address}")


def look_at_temporary_files() -> Finding:
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return problem(reason(error), "Set TMPDIR to a folder that you may write.")
    runtime = folder / f"x5-{os.getuid()}"
    if runtime.exists() and runtime.stat().st_uid != os.getuid():
        return problem(f"{runtime} belongs to somebody else", "Set TMPDIR to a folder of your own.")
    return look_at_room(folder, "Set TMPDIR to a larger disk, or remove what is not needed.")


def look_at_room(folder: Path, action: str) -> Finding:
    """How much can be written on the disk of `folder`, to an ordinary user."""
    room = os.statvfs(folder)
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {_size(free)} free"
    if room.f_files and not room.f_favail:
        return problem(f"{found}, but no further file can be made (no free inodes)", action)
    if free < LEAST_FREE_BYTES:
        return problem(found, action)
    return ok(found) if free >= SCARCE_FREE_BYTES else warning(found, action)


def look_at_shared_memory(folder: Path = Path("/dev/shm")) -> Finding:  # noqa: S108 - only looked at
    if not folder.is_dir():
        return (
            ok("no /dev/shm: Ray uses temporary files")
            if sys.platform != "linux"
            else warning("there is no /dev/shm", "Mount a tmpfs on /dev/shm; data loaders with workers fail without.")
        )
    free = shutil.disk_usage(folder).free
    found = f"{folder}, {_size(free)} free"
    if free < SCARCE_SHM_BYTES:
        action = (
            "Data loaders with workers fail when it is full: remove what is left there; in a container --shm-size=1g."
        )
        return warning(found, action)
    return ok(found)


def look_at_namespaces() -> Finding:
    if isolation_prefix():
        return ok("PID namespaces can be made: nothing of a probe outlives it")
    tools = [name for name in ("setpriv", "unshare") if shutil.which(name) is None]
    if tools:
        return warning(
            f"{' and '.join(tools)} not found: probes run in process groups", "Install util-linux 2.33 or later."
        )
    return warning(
        "PID namespaces are refused: probes run in process groups, which a daemon of theirs can leave",
        "Nothing, if your training starts no daemons; else run as root, in a container with --cap-add SYS_ADMIN.",
    )


def look_at_extra(name: str) -> Finding:
    """Only `worker` is needed to run jobs; of the others it is said how to get them."""
    missing = missing_of_extra(name)
    if not missing:
        return ok("installed")
    found = f"not installed: {', '.join(missing)}"
    return problem(found, WORKER) if name == "worker" else ok(found, f"For it: pip install 'x5tune[{name}]'")


def missing_of_extra(name: str) -> list[str]:
    """The packages that an extra of ours names and that are not installed."""
    asked = [
        each for each in importlib.metadata.requires("x5tune") or () if re.search(rf"extra == ['\"]{name}['\"]", each)
    ]
    return [package for each in asked if not _is_installed(package := re.split(r"[^A-Za-z0-9._-]", each)[0])]


def _is_installed(package: str) -> bool:
    try:
        importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _build(cuda: str | None, hip: Any) -> str:
    if cuda:
        return f"built for CUDA {cuda}"
    return f"built for ROCm {hip}" if hip else "built for the CPU"


def numbers(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version: (2, 13, 0) of `2.13.0+cpu`."""
    return tuple(int(part) for part in re.match(r"[0-9]+(\.[0-9]+)*|", version)[0].split(".") if part)  # type: ignore[index]


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count // MIB} MiB"
