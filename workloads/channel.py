"""The probe's end of the control socket: reports go out as JSON lines, a decision comes back for each.

Standard library only: this runs in the user's interpreter. One line out, one line in (`{"go": "continue"}`, `pause`, or
`{"go": "stop", "reason": ...}`), so a probe stands still while its trial is being judged. Only one whose report says
`can_pause` is told to pause.
"""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable, Mapping
from typing import Any

from workloads.contract import Fidelity, Pause, ProbeConfig, Stop
from workloads.horizon import Horizon


def read_config(text: str) -> ProbeConfig:
    """Parse the content of the file that `X5TUNE_CONFIG` names."""
    raw = json.loads(text)
    return ProbeConfig(fidelity=Fidelity.from_json(raw.pop("fidelity")), **raw)


def as_number(name: str, value: object) -> float:
    """`value` as a float: NumPy, Decimal and zero-dimensional tensor scalars are numbers, text and booleans are not.

    Raises TypeError naming the metric.
    """
    if isinstance(value, str | bytes | bool) or value is None:
        raise TypeError(f"metric {name!r} must be a number, not {type(value).__name__} {value!r:.80}")
    try:
        return float(value)  # type: ignore[arg-type]  # anything with __float__
    except (TypeError, ValueError) as error:
        raise TypeError(f"metric {name!r} must be a number, not {type(value).__name__}: {error}") from error
    except OverflowError:
        return math.inf


class ChannelProbe:
    """A `Probe` that talks to its slot over a connected stream socket. `can_pause` is asked at every report."""

    Stop = Stop

    def __init__(
        self,
        config: ProbeConfig,
        connection: socket.socket,
        tokens_per_sample: int | None,
        can_pause: Callable[[], bool] = lambda: False,
    ) -> None:
        self._batch_size = int(config.parameters.get("batch_size", 1))
        self._axis = config.fidelity.axis
        self._tokens_per_sample = tokens_per_sample
        self._horizon = Horizon.of(config.fidelity, self._batch_size, tokens_per_sample)
        if config.resume_at is not None:
            self._horizon.resume(config.resume_at["step"], config.resume_at["position"])
        self._can_pause = can_pause
        self._connection = connection
        self._replies = connection.makefile("r", encoding="utf-8")

    @property
    def steps(self) -> int:
        if not self._horizon.fidelity.is_known:
            raise LookupError(
                "probe.steps is not known: give fidelity.max in the job, or let the function end by itself so that its "
                "first run shows how long a full run is"
            )
        return self._horizon.steps

    def due(self, step: int) -> bool:
        return self._horizon.due(step)

    def report(self, *, step: int, **metrics: float) -> None:
        numbers = {name: as_number(name, value) for name, value in metrics.items()}
        for name in ("samples", "tokens", "seconds"):
            if not math.isfinite(numbers.get(name, 0.0)):
                raise ValueError(f"{name!r} says how far the run is and must be finite, not {numbers[name]}")
        samples = numbers.pop("samples", float(step * self._batch_size))
        message: dict[str, Any] = {"type": "report", "step": int(step), "samples": samples}
        for axis in ("tokens", "seconds"):
            if axis in numbers:
                message[axis] = numbers.pop(axis)
        if self._axis == "seconds" and "seconds" not in message:
            message["seconds"] = self._horizon.position(step)
        if self._axis == "tokens" and "tokens" not in message and self._tokens_per_sample:
            message["tokens"] = samples * self._tokens_per_sample
        message["metrics"] = numbers
        if self._can_pause():
            message["can_pause"] = True
        self.send(message)
        reply = json.loads(self._replies.readline() or '{"go": "stop", "reason": "the tuner is gone"}')
        if reply["go"] == "stop":
            raise Stop(reply.get("reason", "stopped"))
        if reply["go"] == "pause":
            raise Pause(reply.get("reason", "paused"))
        if "seconds" in message:
            self._horizon.resume(step, message["seconds"])  # standing still is not training

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message without waiting; used for the closing `end` message too."""
        self._connection.sendall(json.dumps(message).encode() + b"\n")
