"""Checks of a diagnosis: whether the model can learn at all, and whether what it learns is worth anything elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

from workloads.checks_gradients import term_of
from workloads.input_reach import Changed, shuffled
from workloads.loss_watch import Term
from workloads.subject import Subject, train_steps, without_dropout
from workloads.verdicts import Verdict, ok, problem, skipped, warning

FEW = 8
OVERFIT_STEPS, OVERFIT_EVERY = 200, 20
OVERFIT_RATES = (3e-3, 3e-2, 3e-4)
OVERFIT_LEFT = 0.5
FAR_TARGETS = 100.0  # deviation of targets that is too far for a model's first steps
LEARN_STEPS, LEARN_RATE, LEARN_BATCH = 400, 3e-3, 64
LEARN_SECONDS = 15.0
ENOUGH_STEPS = 100
SHUFFLES = 8
HARDLY_WORSE = 0.25
MUCH_DROPPED, LITTLE = 0.5, 0.5
HARDLY = 0.05  # of the loss with the inputs of others, and of a metric at the start
MOMENTS = (12, 25, 50, 100, 200)


def one_batch_is_learnt(subject: Subject) -> Verdict:
    """A model with a working gradient learns a handful of samples by heart."""
    code = "overfit"
    batch = subject.batch(0, min(FEW, subject.settings.batch_size))
    best, start, steps = math.inf, math.nan, 0
    for rate in OVERFIT_RATES:
        model = without_dropout(subject.model())
        whole_before, term = subject.look(model, batch)
        start = whole_before if term is None else term.value
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
        whole = subject.look(model, batch)[0]
        if term is not None and whole < whole_before and term_of(subject, model, batch)[0] > 2 * start:
            return _upside_down(term, whole_before, whole)
    message = (
        f"{FEW} samples are not learnt by heart in {OVERFIT_STEPS} steps: the loss goes from {start:.4g} to {best:.4g}"
    )
    action = (
        "Check that loss and labels go together, that the optimizer changes the weights, and that nothing saturates."
    )
    if term is not None and term.kind == "squared error" and term.chance > FAR_TARGETS**2:
        spread = math.sqrt(term.chance)
        action = f"Divide the targets by about {spread:.1g}, their deviation: what a fresh model gives is about 1."
    return problem("cannot_overfit", f"{message} at best.", action, start=start, end=best, rates=list(OVERFIT_RATES))


def _upside_down(term: Term, before: float, after: float) -> Verdict:
    message = (
        f"The loss falls from {before:.4g} to {after:.4g} while its {term.kind} rises: it is made larger, not smaller."
    )
    action = "Look at the loss's sign: what torch's losses give is to be minimised as it is."
    return problem("loss_sign", message, action, start=before, end=after)


class Lesson:
    """A model trained for a little while on most of the training data, for the checks of what it has learnt."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.fresh = subject.model(is_training=False)
        self.model = subject.model()
        began, allowed = subject.time_left(), min(LEARN_SECONDS, subject.time_left() / 2)
        self._states: list[dict[str, torch.Tensor]] = []
        self.steps = self._train(
            self.model, LEARN_STEPS, lambda step: self._keep(step) or began - subject.time_left() > allowed
        )

    def _train(self, model: nn.Module, steps: int, after: Callable[[int], bool]) -> int:
        subject, size = self.subject, min(LEARN_BATCH, len(self.subject.trained))
        steps = train_steps(subject, model, LEARN_RATE, steps, lambda step: subject.batch(step, size), after)
        model.eval()
        return steps

    def without_dropout(self) -> nn.Module:
        """Another model, trained for as many steps on the same batches."""
        model = without_dropout(self.subject.model())
        self._train(model, self.steps, lambda _: False)
        return model

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

    def losses(self) -> tuple[float, float, list[float], int]:
        """On training samples that were kept apart: before, after, and after with the inputs shuffled (none where
        training has diverged); and after how many steps: those that told them best, as later ones learn by heart.
        """
        subject, rows = self.subject, self.subject.held_out
        before, after = (subject.value(model, rows) for model in (self.fresh, self.model))
        subject.reachable = (before - after) / max(abs(before), 1e-12) if math.isfinite(after) else None
        if not math.isfinite(after):
            return before, after, [], self.steps
        model, after, steps = self._at_best(after)
        apart = []
        for seed in range(SHUFFLES):
            with Changed(model, shuffled(seed)):
                apart.append(subject.value(model, rows))
        return before, after, apart, steps

    def _at_best(self, last: float) -> tuple[nn.Module, float, int]:
        """The model as it told the samples that were kept apart best, with what loss, and after how many steps."""
        told = [(last, self.steps)]
        told += [
            (self.subject.value(model, self.subject.held_out), steps)
            for model, steps in zip(self.moments(), MOMENTS[: len(self._states)], strict=False)
        ]
        lowest, steps = min((one for one in told if math.isfinite(one[0])), key=lambda one: one[0])
        if steps == self.steps:
            return self.model, lowest, steps
        model = self.subject.model(is_training=False)
        model.load_state_dict(self._states[MOMENTS.index(steps)])
        return model, lowest, steps


def labels_follow_from_inputs(lesson: Lesson) -> Verdict:
    """On samples that it has not seen, a trained model is better with their own inputs than with those of others."""
    code = "learns"
    if len(lesson.subject.held_out) < 16:
        return skipped(code, f"There are {lesson.subject.count} training samples, too few to keep some apart.")
    before, after, apart, steps = lesson.losses()
    evidence: dict[str, Any] = {"start": before, "end": after, "steps": steps}
    if not math.isfinite(after):
        message = f"Training at a rate of {LEARN_RATE:g} ends with a loss of {after}."
        action = "Lower the learning rate, or look at the scale of inputs and loss."
        return warning("unstable", message, action, **evidence, with_others_inputs=None)
    evidence["with_others_inputs"] = mean(apart)
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
        f"After {steps} of {lesson.steps} steps, when unseen training samples are told best, their loss is {after:.4g} "
        f"with their own inputs and {mean(apart):.4g} with those of others: what is learnt says nothing about them"
    )
    order = "Check that inputs and labels are in the same order: shuffled or sorted apart, off by one, joined wrongly?"
    action = f"{order} If they are, the model learns by heart: are its first weights (embeddings) too large?"
    return problem("labels_unrelated", f"{message}.", action, **evidence)


def dropout_leaves_enough(lesson: Lesson) -> Verdict:
    """Where much is dropped and little learnt, a model without dropout does not learn much more of unseen samples."""
    code, subject = "dropout", lesson.subject
    most = max(
        (part.p for part in lesson.model.modules() if isinstance(part, nn.modules.dropout._DropoutNd)), default=0
    )
    if most < MUCH_DROPPED:
        return skipped(code, "Little is dropped.")
    start = subject.value(lesson.fresh, subject.held_out)

    def learnt(model: nn.Module) -> float:
        return (start - subject.value(model, subject.held_out)) / max(abs(start), 1e-12)

    reached = learnt(lesson.model)
    if reached > LITTLE:
        return ok(
            code, f"{reached:.0%} of the loss of unseen training samples is learnt although {most:.0%} is dropped."
        )
    without = learnt(lesson.without_dropout())
    said = (
        f"After {lesson.steps} steps {reached:.0%} of the loss of unseen samples is gone, {without:.0%} without dropout"
    )
    evidence = {"dropout": most, "learnt": reached, "learnt_without": without}
    if without > 2 * max(reached, HARDLY):
        level = problem if without > 4 * max(reached, HARDLY) else warning
        action = "Lower it: 0.1 to 0.5 is usual."
        return level(code, f"{said}: {most:.0%} of the units is too much to drop.", action, **evidence)
    return ok(code, f"{said}.", **evidence)
