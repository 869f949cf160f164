"""Mixed precision: autocast, and the fp16 loss scale."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch

from workloads.contract import Diverged, Precision
from workloads.loss_scale import ScaleChoice, judge
from workloads.magnitudes import Magnitudes

AUTO_SCALE = 2048.0
CALIBRATION_STEPS = 100
CALIBRATION_INTERVAL = 20
GROWTH_INTERVAL = 2000
LOOKS = (5, 50, 100)
"""Steps before which the gradients are measured."""
SCALE_FLOOR = 1.0
SKIPS_AT_FLOOR = 10
TRAJECTORY = 40  # changes of the scale that are kept

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class MixedPrecision:
    """How a run computes: `autocast()` for the forward pass and, in fp16, a dynamic loss scale.

    The loss scale follows Micikevicius et al. 2018 (arXiv:1710.03740): a gradient that overflows halves it and skips
    the step, a run of good steps doubles it. `auto` starts at 2048 and is calibrated over the first 100 steps: it may
    double every 20 good steps there, every 2000 after that, and what is measured of the gradients (`calibrate`) sets
    it and bounds it until then. Where no scale holds what was measured, the run goes on in bf16.
    A number starts there and may double every 2000; it is measured to be judged, not to be changed. A skipped step is
    not divergence; ten in a row at a scale of 1, which cannot be a matter of scale, are.
    """

    def __init__(self, precision: Precision, device: torch.device, loss_scale: float | Literal["auto"]) -> None:
        self._precision: Precision = precision
        self._device = device
        self.is_scaled = precision == "fp16"
        self._calibrates = loss_scale == "auto"
        self._asked = None if loss_scale == "auto" else float(loss_scale)
        self.skipped_steps = self._steps = 0
        self._skips_at_floor = 0
        self._seen = (Magnitudes(), Magnitudes())
        self._overflown_at = math.inf
        self._choice: ScaleChoice | None = None
        self._flushed = 0.0
        self._is_chosen_anew = False
        self._trajectory: list[tuple[int, float]] = []
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

    def is_measured(self, step: int) -> bool:
        """Whether `calibrate` wants the gradients before this step."""
        return self.is_scaled and step in LOOKS

    def calibrate(self, parameters: Magnitudes, activations: Magnitudes) -> str | None:
        """Take in the magnitudes of a reference backward pass in fp32; what was changed, in words, None if nothing.

        The scale itself is changed with the coming step.
        """
        for seen, new in zip(self._seen, (parameters, activations), strict=True):
            seen.counts += new.counts
        choice = ScaleChoice.of(*self._seen)
        if choice is None:
            return None
        self._choice = choice
        self._flushed = parameters.flushed(self.scaler.get_scale())
        if not self._calibrates:
            return None
        if choice.is_empty:
            self._go_on_in("bf16")
            return f"{judge(choice, 0.0, 0, 0, 0.0)}; this run goes on in bf16"
        self._is_chosen_anew = True
        return None

    def _go_on_in(self, precision: Precision) -> None:
        """Without a loss scale from here on."""
        self._precision, self.is_scaled = precision, False
        self.scaler = torch.amp.GradScaler(self._device.type, enabled=False)

    @property
    def scale(self) -> float:
        """The loss scale as it is now; 1 without one."""
        return self.scaler.get_scale()

    def step(self, optimizer: torch.optim.Optimizer, step: int, *, is_overflown: bool) -> str | None:
        """Take the optimizer's step unless the (already unscaled) gradients overflowed, and adapt the scale.

        Returns, of an overflow, what was done about it. Raises `Diverged` when the scale has nowhere left to go.
        """
        if not is_overflown:
            self.scaler.step(optimizer)
        scale_before = self.scaler.get_scale()
        self.scaler.update()
        if not self.is_scaled:
            return None
        self._steps += 1
        if self._calibrates and step == CALIBRATION_STEPS:
            self.scaler.set_growth_interval(GROWTH_INTERVAL)
        if is_overflown:
            self._overflown_at = min(self._overflown_at, scale_before)
        self._keep_in_bounds(is_calibrating=self._calibrates and step <= CALIBRATION_STEPS)
        if not self._trajectory or self._trajectory[-1][1] != self.scaler.get_scale():
            self._trajectory = [*self._trajectory, (step, self.scaler.get_scale())][-TRAJECTORY:]
        self.skipped_steps += is_overflown
        self._skips_at_floor = self._skips_at_floor + 1 if is_overflown and scale_before <= SCALE_FLOOR else 0
        if self._skips_at_floor >= SKIPS_AT_FLOOR:
            raise Diverged(
                f"gradients at step {step} are not finite, at the smallest loss scale, {SKIPS_AT_FLOOR} times"
            )
        lowered = f"the gradients of step {step} overflow: it is skipped, the loss scale goes to {self.scale:g}"
        return lowered if is_overflown else None

    def _keep_in_bounds(self, *, is_calibrating: bool) -> None:
        scale = wanted = self.scaler.get_scale()
        if is_calibrating and self._choice is not None:
            wanted = self._choice.scale if self._is_chosen_anew else min(wanted, self._choice.scale)
            wanted = min(wanted, self._overflown_at / 2)
        self._is_chosen_anew = False
        wanted = max(wanted, SCALE_FLOOR)
        if wanted != scale:
            self.scaler.update(wanted)

    def health(self) -> dict[str, float]:
        """What to report of the loss scale; nothing without one."""
        if not self.is_scaled:
            return {}
        return {"loss_scale": self.scale, "skipped_steps": float(self.skipped_steps)}

    def account(self) -> dict[str, Any]:
        """How the loss scale came about, and what is wrong with it if anything; empty where there never was one."""
        if self._steps == 0:
            return {}
        scale = self.scaler.get_scale()
        told: dict[str, Any] = {
            "trajectory": [list(change) for change in self._trajectory],
            "skipped": self.skipped_steps,
            "steps": self._steps,
            "verdict": judge(self._choice, scale, self.skipped_steps, self._steps, self._flushed, self._asked),
        }
        if self._choice is not None:
            choice = self._choice
            told |= {"floor": choice.floor, "ceiling": choice.ceiling, "underflow": choice.underflow}
            told |= {} if choice.is_empty else {"chosen": choice.scale}
        return {"loss_scaling": told}

    def state_dict(self) -> dict[str, Any]:
        choice = self._choice
        return {
            "scaler": self.scaler.state_dict(),
            "precision": self._precision,
            "skipped_steps": self.skipped_steps,
            "steps": self._steps,
            "skips_at_floor": self._skips_at_floor,
            "choice": None if choice is None else (choice.floor, choice.ceiling, choice.underflow),
            "flushed": self._flushed,
            "seen": [seen.counts for seen in self._seen],
            "overflown_at": self._overflown_at,
            "trajectory": self._trajectory,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["precision"] != self._precision:
            self._go_on_in(state["precision"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.skipped_steps, self._skips_at_floor = state["skipped_steps"], state["skips_at_floor"]
        parameters, activations = (Magnitudes(counts.cpu()) for counts in state["seen"])
        self._seen, self._overflown_at = (parameters, activations), state["overflown_at"]
        self._steps, self._flushed = state["steps"], state["flushed"]
        self._choice = None if state["choice"] is None else ScaleChoice(*state["choice"])
        self._trajectory = [tuple(change) for change in state["trajectory"]]
