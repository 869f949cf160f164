"""Which GPUs a process sees, by UUID, worked out from its environment without starting CUDA.

CUDA Programming Guide, "CUDA Environment Variables": the list in CUDA_VISIBLE_DEVICES ends before its first entry that
names no device, a repeated device leaves none, and a UUID may be shortened as long as it stays unique.
CUDA_DEVICE_ORDER is FASTEST_FIRST unless it says PCI_BUS_ID: where GPUs differ, nobody but CUDA knows that order; equal
ones are taken to be in the order of the bus.

ROCm, "GPU isolation techniques": ROCR_VISIBLE_DEVICES hides devices from the runtime below, HIP_VISIBLE_DEVICES (or
CUDA_VISIBLE_DEVICES where that is empty) chooses from what is left; both lists end before their first wrong entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class UnknownOrderError(Exception):
    """The GPUs differ and CUDA's order of them is not fixed; the message says how to fix it."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as NVML lists it, by PCI bus, with the UUIDs of its MIG devices."""

    uuid: str
    name: str
    slices: tuple[str, ...] = ()


def visible_uuids(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[str]:
    """The UUIDs of the devices that a process with this environment sees, in its own order.

    A divided GPU that is named as a whole stands for its first MIG device, as in CUDA. Raises `UnknownOrderError`.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        if len(gpus) > 1:
            _require_known_order(gpus, environ)
        return [_whole(gpu) for gpu in gpus]
    found: list[str] = []
    for token in (part.strip() for part in text.split(",")):
        if token.isdecimal():
            if len(gpus) > 1:
                _require_known_order(gpus, environ)
            uuid = _whole(gpus[int(token)]) if int(token) < len(gpus) else None
        else:
            uuid = _named(gpus, token)
        if uuid is None:
            break
        found.append(uuid)
    return found if len(set(found)) == len(found) else []


def visible_to_hip(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[str]:
    """The UUIDs of the AMD devices, given in HIP's order, that a process with this environment sees, in its own."""
    seen = [gpu.uuid for gpu in gpus]
    hidden = environ.get("ROCR_VISIBLE_DEVICES")
    if hidden is not None:
        seen = _chosen(seen, hidden)
    chosen = environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES")
    return _chosen(seen, chosen) if chosen else seen


def _chosen(uuids: Sequence[str], text: str) -> list[str]:
    """Those that the list names by place or UUID, until one that names none or is named again."""
    found: list[str] = []
    for token in (part.strip() for part in text.split(",")):
        at = int(token) if token.isdecimal() else next((i for i, uuid in enumerate(uuids) if uuid == token), -1)
        if not 0 <= at < len(uuids) or uuids[at] in found:
            break
        found.append(uuids[at])
    return found


def _named(gpus: Sequence[Gpu], token: str) -> str | None:
    """The one device whose UUID begins like this."""
    if not token.startswith(("GPU-", "MIG-")):
        return None
    matching = [part for gpu in gpus for part in gpu.slices if part.startswith(token)]
    matching += [_whole(gpu) for gpu in gpus if gpu.uuid.startswith(token)]
    return matching[0] if len(matching) == 1 else None


def _whole(gpu: Gpu) -> str:
    return gpu.slices[0] if gpu.slices else gpu.uuid


def _require_known_order(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> None:
    is_by_bus = environ.get("CUDA_DEVICE_ORDER", "").strip() == "PCI_BUS_ID"
    if not is_by_bus and len({gpu.name for gpu in gpus}) > 1:
        raise UnknownOrderError(
            "CUDA_DEVICE_ORDER is not PCI_BUS_ID and the GPUs differ, so their numbers in CUDA are not known: "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name UUIDs in CUDA_VISIBLE_DEVICES."
        )
