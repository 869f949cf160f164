"""Checks of a diagnosis: whether evaluating tells what a model has learnt, and of the same kind of data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from workloads.buffers import kept_buffers
from workloads.checks_learning import ENOUGH_STEPS, HARDLY, Lesson
from workloads.subject import Subject
from workloads.verdicts import Verdict, ok, problem, skipped

LIKE = 0.4  # of what is gained on unseen training samples
SURE = 5.0  # standard deviations
Norm = nn.modules.batchnorm._NormBase
ROWS = 256


def statistics_are_current(lesson: Lesson) -> Verdict:
    """What is learnt with the statistics of a batch shows with the running ones too, which evaluation normalises by."""
    code, subject = "running_statistics", lesson.subject
    norms = [part for part in lesson.model.modules() if isinstance(part, Norm) and part.running_mean is not None]
    if not norms:
        return skipped(code, "The model has no running statistics.")
    if lesson.steps < ENOUGH_STEPS:
        return skipped(code, f"There was time for {lesson.steps} steps only, too few to tell.")
    rows = subject.trained[:ROWS]
    start = _by_the_batch(subject, lesson.fresh, rows)
    batch, running = _by_the_batch(subject, lesson.model, rows), subject.value(lesson.model, rows)
    said = f"{batch:.4g} normalised by the batch and of {running:.4g} by the running statistics"
    evidence = {"start": start, "by_the_batch": batch, "by_running_statistics": running}
    if start - batch > HARDLY * abs(start) and not start - running > LIKE * (start - batch):
        message = f"After {lesson.steps} steps training samples have a loss of {said}: evaluation sees a worse model."
        action = "Look at the momentum of the norms (0.1 is usual), and whether all batches are of the same kind."
        return problem(code, message, action, **evidence)
    return ok(code, f"Training samples have a loss of {said}.", **evidence)


def _by_the_batch(subject: Subject, model: nn.Module, rows: torch.Tensor) -> float:
    """The loss in evaluation mode but for the norms, which take the statistics of each batch."""
    norms = [part for part in model.modules() if isinstance(part, Norm)]
    with kept_buffers(model):
        try:
            for part in norms:
                part.train()
            return subject.value(model, rows)
        finally:
            for part in norms:
                part.eval()


def metric_follows_the_model(lesson: Lesson) -> Verdict:
    """A fresh model, a trained one, and one whose weights all have the other sign do not all have the same metrics."""
    code, subject = "metric_constant", lesson.subject
    found = [dict(subject.evaluated(model, subject.evaluation_data)) for model in (lesson.fresh, lesson.model)]
    with _negated(lesson.model):
        found.append(dict(subject.evaluated(lesson.model, subject.evaluation_data)))
    names = [subject.metric] if subject.metric in found[0] else list(found[0])
    if any(one.get(name) != found[0][name] for one in found for name in names):
        return ok(code, "What is evaluated depends on the model.")
    name = names[0]
    message = f"{name} is {found[0][name]:.5g} for a fresh model, a trained one and one with all weights negated."
    action = "evaluate has to use the model that it is given, and data that tell models apart."
    return problem(code, message, action, value=found[0][name])


@contextmanager
def _negated(model: nn.Module) -> Iterator[None]:
    _negate(model)
    try:
        yield
    finally:
        _negate(model)


@torch.no_grad()
def _negate(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.neg_()


def evaluation_is_steady(lesson: Lesson) -> Verdict:
    """Evaluating twice gives the same, and changes nothing."""
    code, subject = "evaluation", lesson.subject
    state = {
        name: value.clone() for name, value in lesson.model.state_dict().items() if isinstance(value, torch.Tensor)
    }
    first = subject.evaluated(lesson.model, subject.evaluation_data)
    second = subject.evaluated(lesson.model, subject.evaluation_data)
    changed = [
        name for name, value in lesson.model.state_dict().items() if name in state and not _same(value, state[name])
    ]
    if changed:
        message = f"Evaluating changes the model: {', '.join(changed[:4])}."
        return problem("evaluation_trains", message, "evaluate must not call train() or change weights and statistics.")
    apart = [
        name for name in first if not math.isclose(first[name], second.get(name, math.nan), rel_tol=1e-4, abs_tol=1e-9)
    ]
    apart = [name for name in apart if not (math.isnan(first[name]) and math.isnan(second.get(name, 0.0)))]
    if apart:
        name = apart[0]
        message = f"Evaluated twice, the same model has a {name} of {first[name]:.5g} and of {second[name]:.5g}."
        action = "Switch off dropout and random choices in evaluate, or seed them: trials cannot be compared."
        return problem("evaluation_random", message, action, first=first[name], second=second[name])
    infinite = [name for name, value in first.items() if name == subject.metric and not math.isfinite(value)]
    if infinite and math.isfinite(subject.value(lesson.model, subject.held_out)):
        message = f"evaluate gives {first[infinite[0]]} for {infinite[0]}, and the loss of training samples is finite."
        action = "Look at the evaluation data, and at what evaluate divides by and takes the logarithm of."
        return problem("evaluation_not_finite", message, action, value=first[infinite[0]])
    return ok(code, "Evaluating twice gives the same and changes nothing.")


def evaluation_is_like_training(lesson: Lesson) -> Verdict:
    """What was learnt has to show on the evaluation data about as it does on unseen training samples, at some moment.

    Later a model may know the training data by heart, neighbours of the unseen samples among them.
    """
    code, subject = "evaluation_data", lesson.subject
    statistics = _statistics(subject)
    rows = subject.held_out
    parts = [part for part in torch.split(rows, max(8, min(len(rows) // 6, 128))) if len(part) >= 8]
    if len(parts) < 3:
        return statistics or skipped(code, "There are too few unseen training samples to compare with.")
    try:
        moments = [_Gains.of(lesson, model, parts) for model in lesson.moments()]
    except Exception as error:  # the training data may not be what evaluate takes
        why = f"evaluate does not take training samples ({type(error).__name__}), so it cannot be compared."
        return statistics or skipped(code, why)
    clear = [moment for moment in moments if moment.is_clear]
    if not clear:
        return statistics or skipped(code, "Too little was learnt to compare training and evaluation data.")
    best = max(clear, key=lambda moment: moment.share)
    evidence = {"metric": best.metric, "gain_on_training": best.usual, "gain_on_evaluation": best.gain}
    gained = (
        f"{best.metric} gains {best.usual:.4g} on unseen training samples and {best.gain:.4g} on the evaluation data"
    )
    if best.share < LIKE and best.usual - best.gain > 3 * best.spread:
        action = "Prepare both the same way: scaling, tokens, channels, and the labels' numbering."
        more = f" ({statistics.message})" if statistics else ""
        message = f"{gained}: they are not the same kind of data{more}."
        return problem("preprocessed_differently", message, action, **evidence)
    return statistics or ok(code, f"{gained}.", **evidence)


@dataclass(frozen=True, slots=True)
class _Gains:
    """By how much a metric is better than a fresh model's: on the evaluation data, and on parts of unseen samples."""

    metric: str
    start: float
    gain: float
    gains: tuple[float, ...]

    @staticmethod
    def of(lesson: Lesson, model: nn.Module, parts: list[torch.Tensor]) -> _Gains:
        subject = lesson.subject
        metric, gain = _gain(lesson, model, subject.evaluation_data)
        start = subject.evaluated(lesson.fresh, subject.evaluation_data)[metric]
        gains = [_gain(lesson, model, subject.training_rows(part))[1] for part in parts]
        if metric != subject.metric and mean(gains) < 0:  # another metric, of which the direction is not known
            return _Gains(metric, start, -gain, tuple(-each for each in gains))
        return _Gains(metric, start, gain, tuple(gains))

    @property
    def usual(self) -> float:
        return mean(self.gains)

    @property
    def spread(self) -> float:
        return stdev(self.gains)

    @property
    def is_clear(self) -> bool:
        is_finite = all(map(math.isfinite, [*self.gains, self.gain]))
        is_worth_it = self.usual > HARDLY * abs(self.start)
        return is_finite and is_worth_it and self.usual > SURE * self.spread / math.sqrt(len(self.gains))

    @property
    def share(self) -> float:
        return self.gain / self.usual


def _gain(lesson: Lesson, model: nn.Module, data: Any) -> tuple[str, float]:
    """By how much the metric is better than without training; the first one where the objective's is not evaluated."""
    subject = lesson.subject
    before, after = (subject.evaluated(each, data) for each in (lesson.fresh, model))
    name = subject.metric if subject.metric is not None and subject.metric in before else next(iter(before))
    change = before[name] - after[name]
    return name, change if subject.direction == "minimize" else -change


def _statistics(subject: Subject) -> Verdict | None:
    """Inputs of one shape whose means or deviations are far apart in training and evaluation."""
    evaluation: Any = subject.evaluation_data
    if not isinstance(evaluation, tuple | torch.Tensor):
        evaluation = _first_samples(evaluation)
    training = _float_leaves(subject.rows(subject.held_out))
    for ours, theirs in zip(training, _float_leaves(evaluation), strict=False):
        if ours.shape[1:] != theirs.shape[1:] or min(len(ours), len(theirs)) < 8:
            continue
        low, high = sorted((float(ours.std()), float(theirs.std())))
        shift = abs(float(ours.mean()) - float(theirs.mean())) / max(low, 1e-12)
        if high > 2 * max(low, 1e-12) or shift > 0.5:
            of = [f"mean {float(t.mean()):.3g}, deviation {float(t.std()):.3g}" for t in (ours, theirs)]
            action = "Prepare both the same way: scaling with the training data's numbers, the same transforms."
            message = f"Training inputs have {of[0]}, evaluation inputs {of[1]}."
            return problem("preprocessed_differently", message, action)
    return None


def _first_samples(data: Any) -> Any:
    try:
        return [data[i] for i in range(min(len(data), 64))]
    except Exception:
        return []


def _float_leaves(value: Any) -> list[torch.Tensor]:
    """Tensors of numbers with a batch axis and at least one more; of a list of samples those of all, stacked."""
    if isinstance(value, list) and value and not isinstance(value[0], torch.Tensor):
        columns = [[leaf for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor)] for sample in value]
        if len({tuple(leaf.shape for leaf in column) for column in columns}) != 1:
            return []
        value = tuple(torch.stack(column) for column in zip(*columns, strict=True))
    leaves = [
        leaf.detach().float().cpu()
        for leaf in tree_leaves(value)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    return [leaf for leaf in leaves if leaf.ndim >= 2]


def _same(value: Any, before: torch.Tensor) -> bool:
    return not isinstance(value, torch.Tensor) or torch.equal(value.cpu(), before.cpu())
