"""Gradient descent on an ill-conditioned quadratic: a workload that needs no torch and takes no time.

Training minimizes sum(c * (x - TRAIN_OPTIMUM)^2) / 2 with noise of standard deviation 1 / sqrt(batch_size) on every
gradient; validation and test measure the same bowl around optima nearer to 0, so that some weight decay helps.
Stable for lr < 2 / max(c) = 0.02, as the theory of gradient descent has it.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

from workloads.contract import CheckpointError, Diverged, Pause, Probe, ProbeConfig
from workloads.horizon import Horizon

CURVATURES = tuple(100.0 * 10 ** (-3 * i / 7) for i in range(8))  # 100 down to 0.1
START = 0.0
TRAIN_OPTIMUM = 1.0
OPTIMUM = {"validation": 0.95, "test": 0.96}
OVERFLOW = 1e6
"""A loss beyond this is reported as infinite, so that divergence shows within a few steps."""


STATE_FILE = "state.json"


class Quadratic:
    """The workload; `Misbehaviour` holds what tests ask of it."""

    can_pause = True

    def run(self, config: ProbeConfig, probe: Probe) -> None:
        given = config.parameters
        lr, decay, batch_size = float(given["lr"]), float(given.get("weight_decay", 0.0)), int(given["batch_size"])
        noise = random.Random(config.seed)
        noise_scale = 1 / math.sqrt(batch_size)
        horizon = Horizon.of(config.fidelity, batch_size)
        misbehaviour = Misbehaviour(config)
        weights = [START + 0.01 * noise.gauss(0, 1) for _ in CURVATURES]

        step = 0
        if config.resume_dir is not None:
            state = _load(config.resume_dir)
            step, weights = state["step"], state["weights"]
            version, internal, gauss = state["noise"]
            noise.setstate((version, tuple(internal), gauss))
            misbehaviour.reports = state["reports"]
            horizon.resume(step, state["position"])
        while not horizon.is_over(step):
            step += 1
            gradient = [
                c * (x - TRAIN_OPTIMUM) + noise_scale * noise.gauss(0, 1)
                for c, x in zip(CURVATURES, weights, strict=True)
            ]
            weights = [x - lr * (g + decay * x) for x, g in zip(weights, gradient, strict=True)]
            loss = _loss(weights, OPTIMUM[config.split])
            if horizon.is_over(step) or horizon.due(step) or not math.isfinite(loss):
                loss = misbehaviour.before_report(loss)
                position = {"seconds": horizon.position(step)} if config.fidelity.axis == "seconds" else {}
                norm = math.hypot(*gradient)
                try:
                    probe.report(step=step, samples=step * batch_size, val_loss=loss, grad_norm=norm, **position)
                except Pause:
                    misbehaviour.before_save()
                    state = {"step": step, "position": horizon.position(step), "weights": weights}
                    _save(config.checkpoint_dir, state | {"noise": noise.getstate(), "reports": misbehaviour.reports})
                    raise
                horizon.resume(step, horizon.position(step))
            if not math.isfinite(loss):
                raise Diverged(f"val_loss at step {step} is {loss}")


def _loss(weights: list[float], optimum: float) -> float:
    loss = sum(c * (x - optimum) * (x - optimum) for c, x in zip(CURVATURES, weights, strict=True)) / 2
    return loss if loss < OVERFLOW else math.inf


def _save(folder: str | None, state: dict[str, Any]) -> None:
    """Whole or not at all."""
    if folder is None:
        raise CheckpointError("this run was told to pause, and it has no checkpoint_dir to leave its state in")
    path = Path(folder) / STATE_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(state), encoding="utf-8")
    temporary.replace(path)


def _load(folder: str) -> dict[str, Any]:
    path = Path(folder) / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error}") from error
    return state


class Misbehaviour:
    """What the parameters marked "For tests" ask for, so that the tuner's tests can break one probe of a real run."""

    def __init__(self, config: ProbeConfig) -> None:
        self._given = config.parameters
        self.reports = 0
        self._held = b"\1" * (int(self._given.get("allocate_mib") or 0) << 20)

    def before_report(self, loss: float) -> float:
        """Sleep, print, crash, die or hang as asked; returns the loss to report."""
        self.reports += 1
        time.sleep(float(self._given.get("sleep_seconds") or 0))
        if count := int(self._given.get("print_bytes") or 0):
            sys.stdout.write("x" * (count - 1) + "\n")
            sys.stdout.flush()
        if self._is_at("crash_at"):
            raise RuntimeError(f"crash_at: report {self.reports}")
        if self._is_at("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)
        while self._is_at("hang_at"):
            time.sleep(3600)
        return math.nan if self._is_at("nan_at") else loss

    def before_save(self) -> None:
        """Fail, hang or die in the middle of a save, as asked."""
        match self._given.get("save"):
            case "fails":
                raise OSError("No space left on device")
            case "hangs":
                time.sleep(3600)
            case "dies":
                os.kill(os.getpid(), signal.SIGKILL)

    def _is_at(self, name: str) -> bool:
        return self._given.get(name) == self.reports
