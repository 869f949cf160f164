"""One thread a slot that reads what the hardware does, once a second, outside the probe's interpreter.

A driver that hangs must not hold up the slot: whoever asks the thread waits `PATIENCE_S` at most, and what it does not
answer is `no_answer`.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tuner.gpu_library import MAX_POWER_W, increase
from tuner.meters import GpuMeter, Rapl, Reading, host_cpus, process_tree, read_host, read_probe
from tuner.telemetry import Recording, Sample

INTERVAL_S = 1.0
SLOW_S = 10.0
FRESH_S = 0.25
PATIENCE_S = 1.0
NO_ANSWER = "no_answer"
MAX_HOST_POWER_W = 20_000.0
MAX_BYTES_PER_S = float(1 << 40)


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A probe's as of now: `summary` as `tuner.telemetry.merged` takes it, `energy_j` None where it is not known."""

    summary: Mapping[str, Any]
    trace: Mapping[str, Any]
    energy_j: float | None


class TelemetrySampler:
    """Telemetry of one probe after the other. `gpus` and `cpus` are what the slot holds, as Ray counts them."""

    def __init__(self, gpus: float, cpus: float, environ: Mapping[str, str] | None = None) -> None:
        self._orders: queue.Queue[Callable[[], object] | None] = queue.Queue()
        self._watch = _Watch(gpus, cpus, dict(os.environ if environ is None else environ))
        self._unanswered: queue.Queue[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def begin(self, root_pid: int) -> None:
        """A probe starts, below the process `root_pid`: counters count from here."""
        self._orders.put(lambda: self._watch.begin(root_pid))  # not waited for: it takes no longer than a fork

    def look_at_device(self) -> Reading | None:
        """The slot's GPUs as they are now, none of its probes running; None without any, or without an answer."""
        found: Reading | None = self._ask(self._watch.device)
        return found

    def look(self, cpu_seconds: float | None = None) -> Telemetry | None:
        """What is known of the running probe, at most FRESH_S old; None where the thread does not answer.

        `cpu_seconds` is what the kernel has counted in all, of a probe that has ended: it is not sampled any more.
        """
        found: Telemetry | None = self._ask(lambda: self._watch.told(cpu_seconds))
        return found

    def close(self) -> None:
        self._orders.put(None)
        self._thread.join(PATIENCE_S)

    def _ask(self, order: Callable[[], Any]) -> Any:
        """The order's answer, from the thread that owns the driver."""
        if self._unanswered is not None and self._unanswered.empty():
            return None  # it hangs; nobody waits for it again until it has answered
        answer: queue.Queue[Any] = queue.Queue()
        self._orders.put(lambda: answer.put(order()))
        try:
            found = answer.get(timeout=PATIENCE_S)
        except queue.Empty:
            self._unanswered = answer
            return None
        self._unanswered = None
        return found

    def _run(self) -> None:
        self._watch.open()
        while True:
            try:
                order = self._orders.get(timeout=self._watch.idle_s())
            except queue.Empty:
                self._watch.sample()
                continue
            if order is None:
                self._watch.close()
                return
            order()


class _Watch:
    """What the thread knows; used by that thread only, but for `idle_s`."""

    def __init__(self, gpus: float, cpus: float, environ: Mapping[str, str]) -> None:
        self._gpus, self._cpus, self._environ = gpus, cpus, environ
        self._meter: GpuMeter | None = None
        self._rapl = Rapl()
        self._root: int | None = None
        self._recording = Recording()
        self._first = self._last = Reading()
        self._began = self._sampled = self._slow_at = 0.0
        self._power_j: dict[str, float] = {}
        self._own: dict[str, float] = {}

    def open(self) -> None:
        if self._gpus > 0:
            self._meter = GpuMeter(self._environ)

    def close(self) -> None:
        if self._meter is not None:
            self._meter.close()

    def device(self) -> Reading | None:
        if self._meter is None:
            return None
        reading = Reading()
        self._meter.read(reading, set(), is_slow_due=self._meter.watches_clocks)
        return reading

    def idle_s(self) -> float | None:
        """Until the next sample is due; None where no probe runs."""
        return None if self._root is None else max(0.0, self._sampled + INTERVAL_S - time.monotonic())

    def begin(self, root_pid: int) -> None:
        self._root = root_pid
        self._recording, self._power_j, self._own = Recording(), {}, {}
        self._began = self._sampled = time.monotonic()
        self._slow_at = self._began + SLOW_S
        self._first = self._last = self._read()
        self._note(self._began)

    def sample(self) -> None:
        at = time.monotonic()
        before, elapsed = self._last, at - self._sampled
        self._last = self._read()
        self._own |= {name: value for name, value in self._last.counters.items() if name.startswith("probe.")}
        self._sampled = at
        for name, watts in self._last.gauges.items():
            if name.endswith(".power_w"):  # between two samples the mean of both
                mean = (watts + before.gauges.get(name, watts)) / 2
                self._power_j[name] = self._power_j.get(name, 0.0) + mean * elapsed
        self._note(at)

    def told(self, cpu_seconds: float | None) -> Telemetry | None:
        if self._root is None:
            return None
        if time.monotonic() - self._sampled >= FRESH_S:
            self.sample()
        seconds = max(self._sampled - self._began, 1e-9)
        energy_j, source, reason = self._energy(seconds)
        summary = {
            "source": "host" if self._meter is None else self._meter.source,
            "is_simulated": self._last.is_simulated,
            "devices": [{"uuid": each.uuid, "name": each.name} for each in self._meter.devices] if self._meter else [],
            "seconds": seconds,
            **self._recording.summary(),
            "counted": self._counted(seconds) | ({} if cpu_seconds is None else {"probe.cpu_s": cpu_seconds}),
            "energy_j": energy_j,
            "energy_source": source,
            "energy_reason": reason,
        }
        if cpu_seconds is not None:
            self._root = None  # it has ended
        return Telemetry(summary, self._recording.trace(), energy_j)

    def _read(self) -> Reading:
        reading = Reading()
        assert self._root is not None
        pids = process_tree(self._root)
        read_probe(reading, pids)
        read_host(reading)
        if self._meter is None:
            self._rapl.read(reading)
            return reading
        now = time.monotonic()
        is_slow_due = now >= self._slow_at
        self._slow_at = now + SLOW_S if is_slow_due else self._slow_at
        if self._meter.failure is not None:
            reading.reasons["gpu"] = self._meter.failure
        self._meter.read(reading, pids, is_slow_due=is_slow_due)
        return reading

    def _note(self, at: float) -> None:
        """Add the last reading to the recording, with the rates of its counters since the one before."""
        values: dict[str, float | None] = dict(self._last.gauges)
        busy = self._since_first("host.cpu_busy_s"), self._since_first("host.cpu_idle_s")
        if busy[0] is not None and busy[1] is not None and sum(each or 0.0 for each in busy) > 0:
            values["host.cpu_share"] = busy[0] / (busy[0] + busy[1])
        self._recording.add(at - self._began, Sample(values, self._last.reasons, self._last.throttled))

    def _since_first(self, name: str, high: float = float("inf")) -> float | None:
        return increase(self._first.counters.get(name), self._last.counters.get(name), high)

    def _counted(self, seconds: float) -> dict[str, float]:
        """By how much the counters of bytes went up; those of the probe began at 0 and stay when it is gone."""
        names = [name for name in self._last.counters if name.endswith("_bytes") and not name.startswith("probe.")]
        found = {name: self._since_first(name, MAX_BYTES_PER_S * (seconds + 1)) for name in names} | self._own
        return {name: value for name, value in found.items() if value is not None}

    def _energy(self, seconds: float) -> tuple[float | None, str | None, str | None]:
        """Joules of the slot's share of its devices, where they come from, and why there are none."""
        if self._meter is None:
            joules = self._since_first("host.energy_j", MAX_HOST_POWER_W * (seconds + 1))
            if joules is None:
                return None, None, self._last.reasons.get("host.energy_j", "counter_reset")
            return joules * min(1.0, self._cpus / host_cpus()), "rapl", None
        if self._meter.failure is not None:
            return None, None, self._meter.failure
        total, source = 0.0, "counter"
        for index, _ in enumerate(self._meter.devices):
            joules = self._since_first(f"gpu{index}.energy_j", MAX_POWER_W * (seconds + 1))
            if joules is None:
                joules, source = self._power_j.get(f"gpu{index}.power_w"), "power"  # integrated over the samples
            if joules is None:
                reasons = self._last.reasons
                return (
                    None,
                    None,
                    reasons.get(f"gpu{index}.energy_j") or reasons.get(f"gpu{index}.power_w") or NO_ANSWER,
                )
            total += joules
        return total * min(1.0, self._gpus), source, None
