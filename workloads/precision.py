"""Mixed precision: autocast, and the fp16 loss scale."""

from __future__ import annotations

from typing import Any, Literal

import torch

from workloads.contract import Diverged, Precision

AUTO_SCALE = 2048.0
CALIBRATION_STEPS = 100
CALIBRATION_INTERVAL = 20
GROWTH_INTERVAL = 2000
SCALE_FLOOR = 1.0
SKIPS_AT_FLOOR = 10

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """How a run computes: `autocast()` for the forward pass and, in fp16, a dynamic loss scale.

    The loss scale follows Micikevicius et al. 2018 (arXiv:1710.03740): a gradient that overflows halves it and skips
    the step, a run of good steps doubles it. `auto` starts at 2048 and may double every 20 good steps in the first 100
    steps, every 2000 after that; a number starts there and may double every 2000. A skipped step is not divergence;
    ten in a row at a scale of 1, which cannot be a matter of scale, are.
    """

    def __init__(self, precision: Precision, device: torch.device, loss_scale: float | Literal["auto"]) -> None:
        self._precision, self._device = precision, device
        self.is_scaled = precision == "fp16"
        self._calibrates = loss_scale == "auto"
        self.skipped_steps = 0
        self._skips_at_floor = 0
        self.scaler = torch.amp.GradScaler(
            device.type,
            init_scale=AUTO_SCALE if loss_scale == "auto" else loss_scale,
            growth_interval=CALIBRATION_INTERVAL if self._calibrates else GROWTH_INTERVAL,
            enabled=self.is_scaled,
        )

    def autocast(self) -> torch.autocast:
        """A context for the forward pass; does nothing in fp32."""
        return torch.autocast(self._device.type, dtype=_DTYPES[self._precision], enabled=self._precision != "fp32")

    def backward(self, loss: torch.Tensor) -> None:
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale, so that the clip sees their true norm; does nothing without one."""
        self.scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, step: int, *, is_overflown: bool) -> None:
        """Take the optimizer's step unless the (already unscaled) gradients overflowed, and adapt the scale.

        Raises `Diverged` when the scale has nowhere left to go.
        """
        if not is_overflown:
            self.scaler.step(optimizer)
        scale_before = self.scaler.get_scale()
        self.scaler.update()
        if not self.is_scaled:
            return
        if self._calibrates and step == CALIBRATION_STEPS:
            self.scaler.set_growth_interval(GROWTH_INTERVAL)
        if self.scaler.get_scale() < SCALE_FLOOR:
            self.scaler.update(SCALE_FLOOR)
        self.skipped_steps += is_overflown
        self._skips_at_floor = self._skips_at_floor + 1 if is_overflown and scale_before <= SCALE_FLOOR else 0
        if self._skips_at_floor >= SKIPS_AT_FLOOR:
            raise Diverged(
                f"gradients at step {step} are not finite, at the smallest loss scale, {SKIPS_AT_FLOOR} times"
            )

    def health(self) -> dict[str, float]:
        """What to report of the loss scale; nothing without one."""
        if not self.is_scaled:
            return {}
        return {"loss_scale": self.scaler.get_scale(), "skipped_steps": float(self.skipped_steps)}

    def state_dict(self) -> dict[str, Any]:
        return {
            "scaler": self.scaler.state_dict(),
            "skipped_steps": self.skipped_steps,
            "skips_at_floor": self._skips_at_floor,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.skipped_steps, self._skips_at_floor = state["skipped_steps"], state["skips_at_floor"]
