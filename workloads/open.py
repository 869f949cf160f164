"""Opening a workload where probes run: the import, its data, and what a first training step would import lazily."""

from __future__ import annotations

import importlib
import os
from typing import cast

from workloads.catalog import manifest
from workloads.contract import Workload


def open_workload(name: str) -> Workload:
    """Import and construct a built-in; its data are loaded here, so that forked probes share them.

    Calls `preload` first for a workload that needs torch. Leaves one thread in the process. Raises `UnknownWorkload`,
    or `DataUnavailable` where the data's source is missing.
    """
    description = manifest(name)
    if description.needs_torch:
        preload()
    module, _, attribute = description.entry.partition(":")
    return cast("Workload", getattr(importlib.import_module(module), attribute)())


def preload() -> None:
    """Import torch and all that its first optimizer step would import in every fork (about 1.1 s), thread-free.

    Call it before anything else has used torch. OPENBLAS_NUM_THREADS=1 has to be in the environment from the start
    where NumPy computes in the parent; it is set here for the case that NumPy is not loaded yet.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    torch.set_num_threads(1)
    for module in ("numpy", "torch._dynamo", "workloads.memory_proof"):
        importlib.import_module(module)
