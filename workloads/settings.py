"""The training loop's parameters of one probe, read once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workloads.contract import ProbeConfig
from workloads.parameters import loop_parameters


@dataclass(frozen=True, slots=True)
class Settings:
    """What the loop was asked to do. `warmup_steps` is None where the warm-up is a fraction of the run.

    `grad_clip_relative` is True where `grad_clip` is a multiple of the largest norm seen while calibrating.
    """

    lr: float
    lr_min: float
    warmup: float
    warmup_steps: int | None
    warmup_start: float
    batch_size: int
    micro_batch: int
    accumulation: int
    processes: int
    optimizer: Literal["adamw", "sgd", "adafactor", "lamb"]
    weight_decay: float
    beta1: float
    beta2: float
    eps: float
    momentum: float
    grad_clip: float | None
    grad_clip_relative: bool
    loss_scale: float | Literal["auto"]
    threads: int

    @classmethod
    def of(cls, config: ProbeConfig) -> Settings:
        """Parameters that `config` leaves out take the loop's default; `derived` decides how a batch is split.

        `derived` may hold `threads` and `processes` (default 1). Raises ValueError where micro_batch x accumulation x
        processes is not the batch size.
        """
        given: dict[str, Any] = {name: info.default for name, info in loop_parameters().items()}
        given |= dict(config.parameters)
        batch_size = int(given["batch_size"])
        processes = int(config.derived.get("processes") or 1)
        micro_batch = int(config.derived.get("micro_batch") or batch_size // processes)
        accumulation = int(config.derived.get("accumulation") or batch_size // (micro_batch * processes))
        if micro_batch * accumulation * processes != batch_size:
            product = f"micro_batch {micro_batch} x accumulation {accumulation} x processes {processes}"
            raise ValueError(f"{product} is not batch_size {batch_size}")
        warmup, clip = given["warmup"], given["grad_clip"]
        asked = warmup if isinstance(warmup, Mapping) else {"fraction": warmup}
        is_relative = isinstance(clip, Mapping)
        loss_scale = config.derived.get("loss_scale") or given["loss_scale"]
        return cls(
            lr=float(given["lr"]),
            lr_min=min(float(given["lr_min"]), float(given["lr"])),
            warmup=float(asked.get("fraction", 0.0)),
            warmup_steps=int(asked["steps"]) if "steps" in asked else None,
            warmup_start=float(asked.get("start", 0.0)),
            batch_size=batch_size,
            micro_batch=micro_batch,
            accumulation=accumulation,
            processes=processes,
            optimizer=given["optimizer"],
            weight_decay=float(given["weight_decay"]),
            beta1=float(given["beta1"]),
            beta2=float(given["beta2"]),
            eps=float(given["eps"]),
            momentum=float(given["momentum"]),
            grad_clip=float(clip["relative"]) if is_relative else None if clip is None else float(clip),
            grad_clip_relative=is_relative,
            loss_scale="auto" if loss_scale == "auto" else float(loss_scale),
            threads=int(config.derived.get("threads") or 1),
        )
