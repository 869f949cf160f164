"""The slot: a reusable Tune actor that holds one warm parent and runs one probe after the other in it.

Reports are in lockstep: a probe stands still from its report until Tune has asked for the next step, so what the
scheduler decides is decided before the probe goes on. A step never waits longer than `STEP_S`.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray import tune

from tuner.assignment import Assignment, ProbeEnd, SlotReport, SlotSetup
from tuner.device_wait import DeviceWait, mark
from tuner.probe_process import Exited, ParentDiedError, ProbeHost, ProbeOrder, ProbeStartError, Report
from tuner.records import Outcome, Point, ProbeRecord, Value
from tuner.reports import ReportBook, UnreadableReportError
from tuner.telemetry_sampler import Telemetry, TelemetrySampler
from tuner.torchrun import failure
from workloads.contract import Fidelity
from workloads.out_of_memory import ended_out_of_memory

STEP_S = 1.0
DISK_CHECK_S = 1.0
DEVICE_CHECK_S = 0.5
OUT_OF_MEMORY_STATUS = -int(signal.SIGKILL)
SAID = {
    "ok": Outcome.OK,
    "stopped": Outcome.CANCELLED,
    "diverged": Outcome.DIVERGED,
    "crashed": Outcome.CRASHED,
    "out_of_memory": Outcome.OUT_OF_MEMORY,
}
LEAVE_S = 2.0
"""What a probe may take to go, once its state is saved."""


class SlotRun:
    """One assignment in one slot; everything of a slot that is not Ray."""

    def __init__(
        self,
        host: ProbeHost,
        setup: SlotSetup,
        assignment: Assignment,
        sampler: TelemetrySampler | None = None,
        wait: DeviceWait | None = None,
    ) -> None:
        self._fidelity = Fidelity.from_json(assignment.probe["fidelity"])
        self._host = host
        self._sampler = sampler
        self._wait = wait
        self._device_notes: dict[str, str] = {}
        self._setup = setup
        self._metric = setup.metric
        batch_size = assignment.probe["parameters"].get("batch_size")
        self._book = ReportBook(self._fidelity, setup.metric, batch_size, assignment.mark)
        self._assignment = assignment
        self._waiting = False
        self._pausing = False
        self._can_pause = False
        self._goodbye_at: float | None = None
        self._unproven = assignment.mark
        on_seconds = assignment.mark is not None and self._fidelity.axis == "seconds"
        self._seconds_before = assignment.mark.position if assignment.mark and on_seconds else 0.0
        self._heard_at = time.monotonic()
        self._started = False
        self._measure_at = 0.0

    def pause(self) -> None:
        """At the next step the waiting probe saves its state and ends, as `paused`, instead of going on.

        A save that fails ends it in another way, with that reason; one that hangs ends with its silence.
        """
        self._pausing = self._waiting

    def step(self) -> SlotReport:
        """Let the probe go on until its next due point, its end, or `STEP_S`."""
        if not self._started:
            try:
                if not self._host.ensure_ready(STEP_S):
                    return self._report((), None)
                if not self._has_its_device():
                    time.sleep(DEVICE_CHECK_S)
                    return self._report((), None)
                probe = self._assignment.probe
                self._host.start(probe, self._setup.environment, self._order(probe))
            except ParentDiedError as error:
                reason = f"while {self._setup.workload} was imported, {error}"
                outcome = Outcome.CRASHED if error.has_exited else Outcome.LOST
                return self._report((), None, outcome, reason, is_fatal=error.has_exited)
            except ProbeStartError as error:
                reason = f"{self._setup.workload} cannot be imported: {error}"
                report = self._report((), None, Outcome.CRASHED, reason, is_fatal=True)
                return replace(report, log_tail=error.traceback)
            self._started = True
            if self._sampler is not None:
                self._sampler.begin(self._host.warm_pid)
            self._heard_at = time.monotonic()
        if self._waiting:
            self._waiting = False
            self._go_on()
        return self._until(time.monotonic() + STEP_S)

    def _has_its_device(self) -> bool:
        """Whether the GPUs are as they should be, or have been waited for as long as that may take."""
        if self._wait is None:
            return True
        may_start, said = self._wait.ask()
        if said is not None:
            self._device_notes["device_loaded" if "although" in said else "device_waited_for"] = said
        return may_start

    def _order(self, probe: Mapping[str, Any]) -> ProbeOrder:
        return self._setup.order(probe, self._host.run_dir)

    def _until(self, deadline: float) -> SlotReport:
        while True:
            event = self._host.wait(max(0.0, min(deadline, self._patience_ends()) - time.monotonic()))
            if isinstance(event, Exited):
                return self._ended(event)
            taken = self._take_in(event) if isinstance(event, Report) else None
            if taken is not None:
                return taken
            if self._pausing and self._host.has_said_goodbye:
                self._goodbye_at = self._goodbye_at or time.monotonic()
                if time.monotonic() - self._goodbye_at > LEAVE_S and (exited := self._host.end("paused")):
                    return self._ended(exited)
            late = self._too_late()
            if late:
                exited = self._host.end(late)
                return self._report((), exited, Outcome.TIMED_OUT, late)
            full = self._too_full()
            if full:
                return self._report((), self._host.end(full), Outcome.CRASHED, full)
            if time.monotonic() >= deadline:
                return self._report((), None)

    def _take_in(self, event: Report, /) -> SlotReport | None:
        """What to hand on of a report; None, and the probe goes on, when nobody has to judge it."""
        try:
            self._check_resumed(event.message)
            point = self._book.add({"seconds": self._seconds_before + self._host.elapsed_s, **event.message})
        except UnreadableReportError as error:
            return self._report((), self._host.end(str(error)), Outcome.CRASHED, str(error))
        self._can_pause = event.message.get("can_pause") is True
        if point is not None and not point.value.is_finite:
            reason = f"{self._metric} is {point.value.kind} at report {point.index} (step {point.step})"
            return self._report((point,), self._host.end(reason), Outcome.DIVERGED, reason)
        if point is not None and self._assignment.judged:
            self._waiting = True
            return self._report((point,), None)
        if self._book.is_past_the_end and self._setup.code is not None:
            reason = f"went on past fidelity.max = {self._fidelity.max:g} {self._fidelity.axis} and was ended there"
            return self._report((), self._host.end(reason), Outcome.OK, reason)
        self._go_on()
        return None

    def _check_resumed(self, message: Mapping[str, Any]) -> None:
        """Of a run that goes on from a pause: that it does. Raises UnreadableReportError."""
        mark, step, self._unproven = self._unproven, message.get("step"), None
        if mark is None or not isinstance(step, int | float) or step >= mark.step:
            return
        raise UnreadableReportError(
            f"was to go on from step {mark.step} and reported step {step:g}: it has not loaded its checkpoint; "
            "call x5tune.checkpoint before the first report, and have `load` restore the step"
        )

    def _go_on(self) -> None:
        self._heard_at = time.monotonic()  # its silence counts from here, not from the report that we kept waiting
        self._host.answer("pause" if self._pausing else "continue", "paused")

    def _patience_ends(self) -> float:
        limits = [self._heard_at + self._setup.silence_seconds]
        if self._setup.probe_seconds is not None:
            limits.append(time.monotonic() - self._host.elapsed_s + self._setup.probe_seconds)
        return min(limits)

    def _too_late(self) -> str | None:
        limit = self._setup.probe_seconds
        if limit is not None and self._host.elapsed_s >= limit:
            return f"ran longer than limits.probe_seconds = {limit:g}"
        if time.monotonic() - self._heard_at >= self._setup.silence_seconds:
            missed = "its checkpoint was not saved within" if self._pausing else "no report for"
            return f"{missed} limits.silence_seconds = {self._setup.silence_seconds:g}"
        return None

    def _too_full(self) -> str | None:
        """Looks about once a second, so a probe may write more than its limit before it is ended."""
        limit = self._setup.disk_mib
        began = time.monotonic()
        if limit is None or began < self._measure_at:
            return None
        held_mib = self._host.run_dir_bytes() / (1 << 20)
        took_s = time.monotonic() - began
        self._measure_at = began + max(DISK_CHECK_S, 20 * took_s)  # of many small files
        if held_mib <= limit:
            return None
        return f"keeps {held_mib:.0f} MiB in its run folder, over limits.disk_mib = {limit:g}"

    def _ended(self, exited: Exited) -> SlotReport:
        said = exited.said
        if said is None and exited.status == 0 and self._setup.code is not None and self._setup.code.argv:
            said = {"outcome": "ok"}  # a command says with its exit status that it is done
        if said is None:
            failed = failure(exited.output) if exited.status == 1 else None
            if failed is not None:
                return self._rank_failed(exited, *failed)
            return self._report((), exited, *self._unsaid(exited))
        if "rank" in said:  # one of several processes, which did not live to say it
            return self._rank_failed(exited, int(said["rank"]), int(said["status"]), str(said["last"]))
        if self._pausing and said.get("outcome") == "paused":
            return replace(self._report((), exited, Outcome.PAUSED), mark=self._book.mark)
        outcome = SAID.get(str(said.get("outcome")), Outcome.CRASHED)
        if outcome == Outcome.OK and self._book.last is None:
            return self._report((), exited, Outcome.NO_METRIC, self._what_was_seen())
        reason = said.get("reason")
        if outcome == Outcome.OK:
            return self._complete(exited, reason)
        return self._report((), exited, outcome, None if reason is None else str(reason))

    def _unsaid(self, exited: Exited) -> tuple[Outcome, str]:
        return unsaid_outcome(exited, is_limited=self._setup.host_memory_mib is not None)

    def _rank_failed(self, exited: Exited, rank: int, status: int, output: str) -> SlotReport:
        outcome, reason = self._unsaid(replace(exited, status=status, output=output))
        return self._report((), exited, outcome, f"rank {rank} {reason}")

    def _what_was_seen(self) -> str:
        seen = ", ".join(self._book.metric_names)
        said = f"never reported {self._metric!r}; it reported: {seen or 'none at all'}"
        if seen:
            return said
        if self._setup.metrics is None:
            is_command = self._setup.code is not None and self._setup.code.argv
            return f"{said} (call x5tune.report, or name what it prints with metrics.stdout)" if is_command else said
        path = self._setup.metrics.path
        if path is None:
            return f"{said} (metrics.stdout matched no line of its output)"
        return f"{said} ({path} is looked for in the run's own folder, which {{run_dir}} and X5TUNE_RUN_DIR name)"

    def _complete(self, exited: Exited, reason: Any) -> SlotReport:
        """It has come to its own end, which shows how long a full run is where nobody knew."""
        points: tuple[Point, ...] = ()
        if not self._fidelity.is_known:
            points = self._book.settle()
            if not points:
                nowhere = (
                    f"its last report is at {self._book.position:g} {self._fidelity.axis}, which is no length of a run"
                )
                return self._report((), exited, Outcome.NO_METRIC, nowhere)
        elif self._setup.code is not None and self._book.last and self._book.last.index < self._fidelity.reports - 1:
            self._book.warnings["short_of_the_horizon"] += 1
        return self._report(points, exited, Outcome.OK, None if reason is None else str(reason))

    def _report(
        self,
        points: tuple[Point, ...],
        exited: Exited | None,
        outcome: Outcome | None = None,
        reason: str | None = None,
        *,
        is_fatal: bool = False,
    ) -> SlotReport:
        last = self._book.last
        seconds = exited.seconds if exited else self._host.elapsed_s
        seen = self._telemetry(exited)
        if outcome and seen and (under := mark(seen.summary, is_shared=self._setup.shares_its_device)):
            self._device_notes["device_loaded"] = under
        notes = {**(exited or self._host).notes, **self._device_notes}
        return SlotReport(
            points=points,
            position=self._book.position,
            probe=ProbeRecord(
                seconds=seconds,
                device_seconds=seconds * self._setup.device_share,
                exit_status=exited.status if exited else None,
                pid=exited.pid if exited else self._host.pid,
                device=self._setup.device_name,
                peak_memory_bytes=exited.peak_memory_bytes if exited else None,
                energy_j=seen.energy_j if seen else None,
                telemetry=seen.summary if seen else {},
                trace=seen.trace if seen and (points or outcome) else {},
            ),
            log_tail=exited.output if exited else self._host.output_text(),
            warnings={**self._book.warnings, **dict.fromkeys(notes, 1)},
            health={**self._book.health, **(exited or self._host).health, **notes},
            notes=notes,
            end=ProbeEnd(outcome, reason, last.value if last else Value.of(None), is_fatal) if outcome else None,
            can_pause=self._can_pause,
        )

    def _telemetry(self, exited: Exited | None) -> Telemetry | None:
        """What was measured up to now, None before the probe has started or where the sampler is silent."""
        if self._sampler is None or not self._started:
            return None
        return self._sampler.look(exited.cpu_seconds if exited else None)


def unsaid_outcome(exited: Exited, *, is_limited: bool = False) -> tuple[Outcome, str]:
    """The outcome of a probe that ended without its closing message; `is_limited`: its host memory was capped."""
    if exited.status is None:
        return Outcome.LOST, "the slot's warm parent ended"
    if exited.status == OUT_OF_MEMORY_STATUS:
        return Outcome.OUT_OF_MEMORY, "killed (SIGKILL), most likely by the kernel for want of memory"
    is_error = exited.status > 0 or exited.status == -int(signal.SIGABRT)  # how C++ ends on an exception
    if is_error and ended_out_of_memory(exited.output, is_limited=is_limited):
        return Outcome.OUT_OF_MEMORY, last_line(exited.output)
    how = f"exited with status {exited.status}" if exited.status >= 0 else f"killed by {signal_name(-exited.status)}"
    said = last_line(exited.output) if is_error or exited.status == 0 else ""
    return Outcome.CRASHED, f"{how}: {said}" if said else how


def last_line(output: str) -> str:
    """The last line with something on it: of a Python traceback, the error."""
    lines = output.strip().splitlines()
    return lines[-1].strip()[:500] if lines else ""


def signal_name(number: int) -> str:
    """`SIGSEGV` and the like; most real-time signals have no name."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def start_run(
    host: ProbeHost,
    setup: SlotSetup,
    assignment: Assignment,
    sampler: TelemetrySampler | None = None,
    wait: DeviceWait | None = None,
) -> SlotRun:
    """The run of an assignment, of the kind that it asks for."""
    from tuner.fit_run import FitRun

    kind = SlotRun if assignment.fit is None else FitRun
    return kind(host, setup, assignment, sampler, wait)


class Slot(tune.Trainable):
    """The Tune side of a slot. `reset_config` is the only news of a scheduler's STOP, so it ends the old probe."""

    def setup(self, config: Mapping[str, Any]) -> None:
        self._host: ProbeHost | None = None
        self._run: SlotRun | None = None
        self._sampler: TelemetrySampler | None = None
        self._wait: DeviceWait | None = None
        self.reset_config(config)

    def reset_config(self, new_config: Mapping[str, Any]) -> bool:
        setup: SlotSetup = new_config["setup"]
        if self._host is not None:
            self._host.end("the trial was stopped")
        if self._host is None or not self._host.is_alive:
            self._close()
            folder = Path(setup.folder) / str(os.getpid())
            self._host = ProbeHost(setup.to_load(), folder, setup.own_environment, setup.threads)
        if self._sampler is None:
            self._sampler = TelemetrySampler(setup.gpus, setup.cpus)
            look, is_shared = self._sampler.look_at_device, setup.shares_its_device
            self._wait = DeviceWait(look, setup.device_wait_s, is_shared=is_shared) if setup.gpus else None
        self._run = start_run(self._host, setup, new_config["assignment"], self._sampler, self._wait)
        return True

    def pause_probe(self) -> None:
        """Called between two steps: the probe is to save its state and end."""
        assert self._run is not None
        self._run.pause()

    def step(self) -> dict[str, Any]:
        assert self._run is not None
        report = self._run.step()
        return {"slot": report, "done": report.end is not None}

    def cleanup(self) -> None:
        self._close()
        if self._sampler is not None:
            self._sampler.close()

    def _close(self) -> None:
        if self._host is not None:
            self._host.close()
            self._host = None
