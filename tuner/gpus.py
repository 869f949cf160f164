"""The library of this machine's GPUs, whoever made them."""

from __future__ import annotations

from tuner.gpu_library import GpuLibrary


def open_gpus() -> GpuLibrary:
    """NVIDIA's where it can be used, else AMD's where that can; NVIDIA's, absent with its reason, where neither can."""
    from tuner.nvml import Nvml

    nvml = Nvml()
    if nvml.absent is None:
        return nvml
    from tuner.amd_smi import AmdSmi

    amd = AmdSmi()
    return amd if amd.absent is None else nvml
