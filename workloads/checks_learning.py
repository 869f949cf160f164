"""Checks of a diagnosis: whether the model can learn at all, and whether what it learns is worth anything elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from workloads.checks_gradients import term_of
from workloads.input_reach import Changed, shuffled
from workloads.subject import Subject, train_steps, without_dropout
from workloads.verdicts import Verdict, ok, problem, skipped, warning

FEW = 8
OVERFIT_STEPS, OVERFIT_EVERY = 200, 20
OVERFIT_RATES = (3e-3, 3e-2, 3e-4)
OVERFIT_LEFT = 0.5
LEARN_STEPS, LEARN_RATE, LEARN_BATCH = 400, 3e-3, 64
LEARN_SECONDS = 15.0
ENOUGH_STEPS = 100
SHUFFLES = 8
HARDLY_WORSE = 0.25
HARDLY = 0.05  # of the loss with the inputs of others, and of a metric at the start
MOMENTS = (12, 25, 50, 100, 200)
LIKE = 0.4  # of what is gained on unseen training samples
SURE = 5.0  # standard deviations


def one_batch_is_learnt(subject: Subject) -> Verdict:
    """A model with a working gradient learns a handful of samples by heart."""
    code = "overfit"
    batch = subject.batch(0, min(FEW, subject.settings.batch_size))
    best, start, steps = math.inf, math.nan, 0
    for rate in OVERFIT_RATES:
        model = without_dropout(subject.model())
        start, term = term_of(subject, model, batch)
        floor = term.floor if term else min(0.0, 2 * start)
        goal = floor + OVERFIT_LEFT * (start - floor)
        lowest = start

        def is_there(step: int, goal: float = goal, model: Any = model) -> bool:
            nonlocal lowest
            if step % OVERFIT_EVERY == 0:
                now = term_of(subject, model, batch)[0]
                lowest = min(lowest, now) if math.isfinite(now) else lowest
            return lowest <= goal

        steps = train_steps(subject, model, rate, OVERFIT_STEPS, lambda _: batch, is_there)
        best = min(best, lowest)
        if lowest <= goal:
            message = f"{FEW} samples are learnt by heart: the loss falls from {start:.4g} to {lowest:.4g}"
            return ok(code, f"{message} in {steps} steps.", start=start, end=lowest, steps=steps, lr=rate)
        if subject.time_left() <= 0:
            return skipped(code, f"There was no time to find out; the loss fell from {start:.4g} to {best:.4g}.")
    message = (
        f"{FEW} samples are not learnt by heart in {OVERFIT_STEPS} steps: the loss goes from {start:.4g} to {best:.4g}"
    )
    action = (
        "Check that loss and labels go together, that the optimizer changes the weights, and that nothing saturates."
    )
    return problem("cannot_overfit", f"{message} at best.", action, start=start, end=best, rates=list(OVERFIT_RATES))


class Lesson:
    """A model trained for a little while on most of the training data, for the checks of what it has learnt."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.fresh = subject.model(is_training=False)
        self.model = subject.model()
        size = min(LEARN_BATCH, len(subject.trained))
        began, allowed = subject.time_left(), subject.time_left() / 2
        self._states: list[dict[str, torch.Tensor]] = []
        allowed = min(allowed, LEARN_SECONDS)
        self.steps = train_steps(
            subject,
            self.model,
            LEARN_RATE,
            LEARN_STEPS,
            lambda step: subject.batch(step, size),
            lambda step: self._keep(step) or began - subject.time_left() > allowed,
        )
        self.model.eval()

    def _keep(self, step: int) -> bool:
        if step in MOMENTS:
            self._states.append({name: value.detach().clone() for name, value in self.model.state_dict().items()})
        return False

    def moments(self) -> Iterator[nn.Module]:
        """The model as it was after some of the steps, and at last."""
        model = self.subject.model(is_training=False)
        for state in self._states:
            model.load_state_dict(state)
            yield model
        yield self.model

    def losses(self) -> tuple[float, float, list[float]]:
        """On training samples that were kept apart: before, after, and after with the inputs shuffled."""
        subject, rows = self.subject, self.subject.held_out
        before, after = (subject.value(model, rows) for model in (self.fresh, self.model))
        subject.reachable = (before - after) / max(abs(before), 1e-12) if math.isfinite(after) else None
        apart = []
        for seed in range(SHUFFLES):
            with Changed(self.model, shuffled(seed)):
                apart.append(subject.value(self.model, rows))
        return before, after, apart


def labels_follow_from_inputs(lesson: Lesson) -> Verdict:
    """On samples that it has not seen, a trained model is better with their own inputs than with those of others."""
    code = "learns"
    if len(lesson.subject.held_out) < 16:
        return skipped(code, f"There are {lesson.subject.count} training samples, too few to keep some apart.")
    before, after, apart = lesson.losses()
    evidence = {"start": before, "end": after, "with_others_inputs": mean(apart), "steps": lesson.steps}
    if not math.isfinite(after):
        message = f"Training at a rate of {LEARN_RATE:g} ends with a loss of {after}."
        return warning(
            "unstable", message, "Lower the learning rate, or look at the scale of inputs and loss.", **evidence
        )
    gap, noise = mean(apart) - after, stdev(apart)
    enough = HARDLY if after < before else HARDLY_WORSE  # learnt by heart, and still something of use
    if gap > 3 * noise and gap > enough * abs(mean(apart)):
        message = f"Unseen training samples are told better by their own inputs ({after:.4g}) than by others'"
        return ok(code, f"{message} ({mean(apart):.4g}).", **evidence)
    if lesson.steps < ENOUGH_STEPS:
        return skipped(code, f"There was time for {lesson.steps} steps only, too few to tell.")
    if all(math.isclose(value, after, rel_tol=1e-6) for value in apart):
        if after < before:
            return ok(code, f"The loss of unseen training samples falls from {before:.4g} to {after:.4g}.", **evidence)
        return skipped(code, "What is to be foretold travels with the inputs, and nothing was learnt of it.")
    if noise < gap > enough * abs(mean(apart)):
        message = f"{len(lesson.subject.held_out)} unseen training samples are too few to tell what chance does"
        return skipped(code, f"{message}: {after:.4g} with their own inputs, {mean(apart):.4g} with others'.")
    message = (
        f"After {lesson.steps} steps unseen training samples have a loss of {after:.4g} with their own inputs and "
    )
    message += f"of {mean(apart):.4g} with those of other samples: labels have nothing to do with inputs"
    action = "Check that inputs and labels are in the same order: shuffled or sorted apart, off by one, joined wrongly?"
    return problem("labels_unrelated", f"{message}.", action, **evidence)


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
