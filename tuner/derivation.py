"""What follows from a configuration: micro-batch, accumulation, processes, loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def derive(
    parameters: Mapping[str, Any], processes: int = 1, largest: int | None = None, *, checkpointing: bool = False
) -> dict[str, Any]:
    """batch_size = micro_batch x accumulation x processes, exactly.

    `largest` is the largest micro-batch that fits: the micro-batch is the largest divisor of one process's share of the
    batch that is not above it. None: the batch goes in one piece. `loss_scale` is passed on as asked for ("auto" or a
    number); it has no effect in fp32 and bf16. `processes` is there when there are several; the specification has seen
    to it that they divide the batch size. So with `checkpointing`: it is there where activations are computed again.
    """
    derived: dict[str, Any] = {"loss_scale": parameters.get("loss_scale", "auto")}
    if "batch_size" in parameters:
        share = int(parameters["batch_size"]) // processes
        micro_batch = share if largest is None else largest_divisor(share, largest)
        derived |= {"micro_batch": micro_batch, "accumulation": share // micro_batch if micro_batch else 1}
    if processes > 1:
        derived["processes"] = processes
    if checkpointing:
        derived["checkpointing"] = True
    return derived


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit` (1 at least)."""
    return next((size for size in range(min(number, limit), 1, -1) if number % size == 0), min(1, number))
