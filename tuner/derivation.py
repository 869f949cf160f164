"""What follows from a configuration: micro-batch, accumulation, processes, loss scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def derive(parameters: Mapping[str, Any], processes: int = 1) -> dict[str, Any]:
    """batch_size = micro_batch x accumulation x processes; without a measured memory limit the batch goes in one piece.

    `loss_scale` is passed on as asked for ("auto" or a number); it has no effect in fp32 and bf16. `processes` is there
    when there are several; the specification has seen to it that they divide the batch size.
    """
    derived: dict[str, Any] = {"loss_scale": parameters.get("loss_scale", "auto")}
    if "batch_size" in parameters:
        derived |= {"micro_batch": int(parameters["batch_size"]) // processes, "accumulation": 1}
    if processes > 1:
        derived["processes"] = processes
    return derived
