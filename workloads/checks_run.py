"""Checks of a diagnosis: a short run of the real training loop, with the parameters as they are, and its health."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from workloads.checks_learning import LEARN_RATE
from workloads.contract import Diverged, Fidelity, Probe
from workloads.horizon import Horizon
from workloads.subject import Subject
from workloads.training import train
from workloads.verdicts import Verdict, ok, problem, skipped, warning

STEPS, LEAST_STEPS, REPORTS = 200, 20, 10
RUN_SECONDS = 20.0
RATIO_LOW, RATIO_HIGH, RATIO_GOAL = 1e-4, 1e-2, 1e-3
FAR = 10.0  # times outside these bounds an update ratio is wrong whatever the loss does
CLIPPED, WAITED, SLOW_BATCH_S = 0.5, 0.3, 0.01
TOO_LARGE = 100.0  # times the noise scale, which is small at the start of a run
FELL, POOR = 0.05, 0.4
DEAD, NARROW, HARSH = 0.95, 0.02, 50.0
HARMLESS, HARMLESS_ADAPTIVE = 2.0, 5.0  # times the bound; adaptive optimizers take steps of one size anyway


@dataclass
class RunProbe:
    """Takes reports, and what is said beside them; ends the run when its time is over."""

    horizon: Horizon
    seconds: float
    reports: list[dict[str, float]] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ends_at = time.monotonic() + self.seconds

    class Stop(Exception):  # noqa: N818 - as in workloads.contract
        pass

    @property
    def steps(self) -> int:
        return self.horizon.steps

    def due(self, step: int) -> bool:
        return self.horizon.due(step)

    def report(self, *, step: int, **metrics: float) -> None:
        self.reports.append({"step": step, **metrics})
        if time.monotonic() > self._ends_at:
            raise self.Stop

    def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "health":
            self.said |= message["values"]
        elif message["type"] == "note":
            self.notes[message["name"]] = message["text"]


class ShortRun:
    """The run, and what came of it; `diverged` is how it ended if it did."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        fidelity = Fidelity("steps", self._steps(subject), REPORTS)
        self.probe = RunProbe(
            Horizon.of(fidelity, subject.settings.batch_size), min(RUN_SECONDS, max(5.0, subject.time_left()))
        )
        self.start = subject.look(subject.model(), subject.batch(0))[0]
        self.diverged: str | None = None
        probe: Probe = self.probe
        try:
            train(subject.workload, replace(subject.config, fidelity=fidelity, activations=True), probe)
        except Diverged as error:
            self.diverged = str(error)
        except RunProbe.Stop:
            pass
        self.reports = self.probe.reports

    @staticmethod
    def _steps(subject: Subject) -> int:
        """No more than a full run has."""
        fidelity, batch = subject.config.fidelity, subject.settings.batch_size
        if not fidelity.is_known or fidelity.axis not in ("steps", "samples", "epochs"):
            return STEPS
        units = {"steps": 1.0, "samples": batch, "epochs": batch / subject.count}[fidelity.axis]
        return max(LEAST_STEPS, min(STEPS, math.ceil(fidelity.max / units)))

    def last(self, name: str) -> float | None:
        return self.reports[-1].get(name) if self.reports else None

    def usual(self, name: str) -> float | None:
        values = [report[name] for report in self.reports if name in report]
        return median(values) if values else None

    @property
    def course(self) -> str:
        return f"fell by {self.fell:.0%}" if self.fell >= 0 else f"rose by {-self.fell:.0%}"

    @property
    def fell(self) -> float:
        """How much of a fresh model's loss is gone at the end; negative when it rose."""
        last = self.last("train_loss")
        return 0.0 if last is None else (self.start - last) / max(abs(self.start), 1e-12)


def rate_is_right(run: ShortRun) -> Verdict:
    """The run neither diverges nor stands still, and an update changes the weights by about a thousandth."""
    lr, ratio, reachable = run.subject.settings.lr, run.usual("update_ratio"), run.subject.reachable
    evidence = {"lr": lr, "update_ratio": ratio, "loss_fell_by": run.fell, "reachable": reachable}
    is_poor = run.fell < (FELL if reachable is None else POOR * reachable)
    lower = f"Lower the learning rate to {_fitting(run, ratio, is_lower=True)}, or lengthen the warm-up."
    if run.diverged is not None:
        message = f"With a learning rate of {lr:g} the run diverges: {run.diverged}."
        return problem("diverges", message, lower, **evidence)
    if ratio is None:
        return skipped("learning_rate", "The run was too short to measure an update.")
    what = f"an update changes the weights by {ratio:.1e} of their norm (about 1e-3 is usual)"
    highest = max(report.get("update_ratio", 0.0) for report in run.reports)
    if ratio > RATIO_HIGH * FAR or (highest > RATIO_HIGH and is_poor):
        message = f"With a learning rate of {lr:g} {what}, and the loss {run.course}: the rate is too high."
        return problem("learning_rate_too_high", message, lower, **evidence)
    if ratio < RATIO_LOW / FAR or (ratio < RATIO_LOW and is_poor):
        message = f"With a learning rate of {lr:g} {what}, and the loss {run.course}: the rate is too low."
        action = f"Raise the learning rate to {_fitting(run, ratio, is_lower=False)}."
        return problem("learning_rate_too_low", message, action, **evidence)
    return ok("learning_rate", f"With a learning rate of {lr:g} {what}; the loss {run.course}.", **evidence)


def metric_is_reported(run: ShortRun) -> Verdict:
    """The objective is among what is reported; without it every trial ends `no_metric`."""
    code, metric = "metric", run.subject.metric
    if not run.reports:
        return skipped(code, "The run ended before its first report.")
    names = ", ".join(name for name in run.reports[-1] if name != "step")
    if metric is None or metric in run.reports[-1]:
        return ok(code, f"What is reported: {names}.")
    message = f"The objective's metric {metric} is never reported; what is: {names}."
    return problem("no_metric", message, f"Have evaluate return {metric}, or name another one in objective.metric.")


def _fitting(run: ShortRun, ratio: float | None, *, is_lower: bool) -> str:
    """A learning rate that is lower, or higher, than the run's."""
    settings, reachable = run.subject.settings, run.subject.reachable
    has_trained = settings.optimizer == "adamw" and reachable is not None and reachable > FELL
    if has_trained and (settings.lr > LEARN_RATE) == is_lower:
        return f"about {LEARN_RATE:g}, at which the checks before this one trained"
    fitting = settings.lr * RATIO_GOAL / ratio if ratio else settings.lr
    if fitting == settings.lr or (fitting < settings.lr) != is_lower:
        return "a tenth of it" if is_lower else "ten times as much"
    return f"about {fitting:.1g}"


def clip_is_rare(run: ShortRun) -> Verdict:
    code, clip, share, usual = (
        "clipping",
        run.subject.settings.grad_clip,
        run.last("clip_share"),
        run.usual("grad_norm"),
    )
    if clip is None or share is None or usual is None:
        return skipped(code, "Nothing is clipped.")
    evidence = {"clip_share": share, "usual_norm": usual, "grad_clip": clip}
    said = f"{share:.0%} of the steps are clipped; the gradient's norm is about {usual:.3g}"
    is_relative = run.subject.settings.grad_clip_relative
    harmless = HARMLESS if run.subject.settings.optimizer == "sgd" else HARMLESS_ADAPTIVE
    if share > CLIPPED and not is_relative and usual > harmless * clip:
        action = (
            f"Write grad_clip: {{relative: 1.0}}, or a number above {usual:.2g}; or look at why gradients are so large."
        )
        return warning(code, f"{said}, and grad_clip is {clip:g}.", action, **evidence)
    return ok(code, f"{said}.", **evidence)


def scale_holds(run: ShortRun) -> Verdict:
    code = "loss_scale"
    if run.subject.config.precision != "fp16":
        return skipped(code, f"Only fp16 has a loss scale; this is {run.subject.config.precision}.")
    told = run.probe.said.get("loss_scaling")
    if told is None:
        return skipped(code, "The run was too short to measure the gradients.")
    if changed := run.probe.notes.get("precision_changed"):
        return problem("underflow", changed[:1].upper() + changed[1:] + ".", "Use precision: bf16, or fp32.", **told)
    if told["verdict"]:
        name = "overflow" if "skipped" in told["verdict"] else "underflow"
        sentence = told["verdict"][:1].upper() + told["verdict"][1:]
        return problem(name, f"{sentence}.", "Leave loss_scale to auto, or use precision: bf16.", **told)
    shares = told.get("underflow", {})
    parts = ", ".join(f"{share:.2%} at {name}" for name, share in shares.items() if name != "activations")
    message = f"The loss scale ends at {told['trajectory'][-1][1]:g}; of the gradients it flushes {parts or 'nothing'}"
    return ok(code, f"{message}; {told['skipped']} of {told['steps']} steps were skipped.", **told)


def activations_are_alive(run: ShortRun) -> Verdict:
    """Of the end of the run: units that never speak, and attention that looks at one place only."""
    seen = run.probe.said.get("activations")
    if seen is None:
        return skipped("activations", "The run did not come to a report.")
    dead = {name: layer["dead"] for name, layer in seen["layers"].items() if (layer.get("dead") or 0.0) >= DEAD}
    if dead:
        names = ", ".join(f"{name} ({share:.0%})" for name, share in list(dead.items())[:5])
        message = f"Units are zero on a whole batch after a short run: {names}."
        return warning(
            "dead_units", message, "Lower the learning rate, or use an activation with a slope below 0.", **seen
        )
    known = [call for call in seen["attention"] if None not in call.values()]
    narrow = [call for call in known if call["entropy"] < NARROW and call["max_logit"] > HARSH]
    if narrow:
        message = f"Attention looks at one place only: its entropy is {narrow[0]['entropy']:.1%} of what it can be."
        return warning(
            "attention_is_narrow", message, "Lower the learning rate, or normalise queries and keys.", **seen
        )
    sizes = [layer["rms"] for layer in seen["layers"].values() if layer["rms"] is not None]
    message = (
        f"The outputs of {len(sizes)} layers are between {min(sizes, default=0):.2g} and {max(sizes, default=0):.2g}"
    )
    return ok("activations", f"{message} (root of their mean square).", **seen)


def data_come_in_time(run: ShortRun) -> Verdict:
    share = run.probe.said.get("data_wait")
    if share is None:
        return skipped("data_wait", "The run was too short.")
    message = f"{share:.0%} of the training time is spent waiting for data"
    took = min(_seconds(run, number) for number in range(5))  # the least: others use this machine too
    if share > WAITED and took > SLOW_BATCH_S:
        action = "Prepare samples once instead of at every access, keep them in memory, or make a sample cheaper."
        return warning("data_wait", f"{message}.", action, share=share, batch_seconds=took)
    return ok("data_wait", f"{message}.", share=share)


def _seconds(run: ShortRun, number: int) -> float:
    began = time.perf_counter()
    run.subject.batch(number)
    return time.perf_counter() - began


def batch_fits_the_noise(run: ShortRun) -> Verdict:
    code, noise, batch = "noise_scale", run.last("noise_scale"), run.subject.settings.batch_size
    if not noise:
        return skipped(code, "The gradient noise could not be told from so short a run.")
    message = f"The batch of {batch} is {batch / noise:.3g} times the gradient noise scale of {noise:.3g}"
    if batch < noise / TOO_LARGE:
        action = f"A batch of about {round(noise)} takes fewer steps for hardly more samples; accumulate if it must be."
        return warning("batch_too_small", f"{message}: steps are mostly noise.", action, noise_scale=noise)
    if noise >= 1 and batch > TOO_LARGE * noise:  # below 1 every sample says the same, as at the start of a run
        action = (
            f"A batch of about {max(1, round(noise))} to {max(2, round(4 * noise))} learns as much from fewer samples."
        )
        return warning("batch_too_large", f"{message}: most of it is wasted.", action, noise_scale=noise)
    return ok(code, f"{message}.", noise_scale=noise, batch_size=batch)


def memory_is_steady(run: ShortRun) -> Verdict:
    grows = run.probe.notes.get("memory_growth")
    if grows:
        action = "Keep numbers instead of tensors (`.item()`, `.detach()`), or bound what is kept."
        return warning("memory_growth", grows[:1].upper() + grows[1:] + ".", action)
    return ok("memory", "Memory does not grow from step to step.")
