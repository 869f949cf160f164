"""Checks of a diagnosis: the loss at the start, and whether every weight gets a gradient."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from workloads.checks_data import KEEP_SCALE
from workloads.loss_watch import Term
from workloads.optimizers import decay_groups
from workloads.subject import Subject, train_steps, without_dropout
from workloads.verdicts import Verdict, listed, ok, problem, skipped, warning

STEPS = 12
VANISHED = 1e-7  # of the largest root mean square gradient of a weight
CHANCE_FACTOR, CHANCE_MARGIN = 1.5, 1.0


def loss_is_sound(subject: Subject) -> Verdict:
    """Predictions and targets that go together, and one mean over the batch."""
    code = "loss"
    model = subject.model(is_training=False)
    size = max(2, min(32, subject.settings.micro_batch) // 2 * 2)
    batch = subject.batch(0, size)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        value, term = subject.look(model, batch)
    if not math.isfinite(value):
        action = (
            "Look for a division by zero or a logarithm of zero in the model and the loss, and at the inputs' scale."
        )
        return problem("loss_not_finite", f"The loss of a fresh model is {value}.", action)
    broadcast = [str(w.message).split("\n")[0] for w in said if "broadcasting" in str(w.message)]
    flaw = broadcast[0] if broadcast else term.flaw if term else None
    if flaw:
        sentence = flaw[:1].upper() + flaw[1:].rstrip(".") + "."
        return problem("loss_arguments", sentence, "Hand the loss what it expects: see its documentation in torch.")
    if term is not None and term.is_constant:
        return problem(
            "labels_constant", f"All targets of a batch of {size} are the same.", "Look at how the labels are read."
        )
    halves = [subject.look(model, subject.batch(number, size // 2))[0] for number in (0, 1)]
    ratio = value / (sum(halves) / 2) if sum(halves) else 1.0
    quarter = [subject.look(model, subject.batch(number, size // 4))[0] for number in range(4)] if size >= 8 else []
    again = sum(halves) / 2 / (sum(quarter) / 4) if quarter and sum(quarter) else ratio
    if term is not None and all(abs(r - 2) < 0.1 for r in (ratio, again)):
        message = f"The loss is a sum over the batch: on {size} samples it is {ratio:.3g} times that on half as many."
        action = "Return the mean, else the learning rate means something else for every batch size."
        return problem("loss_is_a_sum", message, action, ratio=ratio)
    return ok(code, f"The loss of a fresh model is {value:.4g}, the mean over the batch.", loss=value)


def start_is_at_chance(subject: Subject) -> Verdict:
    """A fresh model knows nothing, and should not be sure of anything either."""
    code = "initial_loss"
    model = without_dropout(subject.model())  # in training, where norms over the batch are at work
    looks = [subject.look(model, subject.batch(number))[1] for number in range(3)]
    terms = [term for term in looks if term is not None]
    if not terms:
        return skipped(code, "The loss is made of operations of which the chance level is not known.")
    term = terms[0]
    value, chance = (sum(values) / len(terms) for values in ([t.value for t in terms], [t.chance for t in terms]))
    evidence = {"loss": value, "chance": chance, "kind": term.kind}
    what = f"{term.kind} over {term.classes} classes" if term.classes else term.kind
    at = f"The {what} of a fresh model is {value:.4g}; by chance it would be {chance:.4g}"
    action = "Initialise the last layer with smaller weights (or none), and scale inputs to about mean 0, deviation 1."
    if value > CHANCE_FACTOR * chance and value > chance + CHANCE_MARGIN * (1 if term.classes else chance * 4):
        return problem(code, f"{at}: it is wrong and sure of it.", action, **evidence)
    return ok(code, f"{at}.", **evidence)


def weights_get_gradients(subject: Subject) -> Verdict:
    """Over some steps every trainable tensor gets a gradient that is finite and not zero."""
    model = subject.model()
    loss = subject.loss(model, subject.batch(0))
    if not loss.requires_grad:
        action = "Look for detach(), .data, no_grad() or item() between the model and the loss."
        return problem("no_gradient", "The loss does not depend on the model's parameters.", action)
    stray = sorted(_stray(loss, model))
    if stray:
        hidden = listed(_hidden(model)) or listed(stray)
        message = f"The loss trains tensors that are no parameters of the model, so no optimizer gets them: {hidden}."
        action = (
            "Register them: as attributes, in nn.ModuleList, nn.ModuleDict or nn.ParameterList, not in a list or dict."
        )
        return problem("missing_from_optimizer", message, action, shapes=stray[:10])
    seen: dict[str, float] = {}
    rms: dict[str, float] = {}

    def note(_: int) -> bool:
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            if gradient is not None and parameter.requires_grad:
                values = gradient.coalesce().values() if gradient.is_sparse else gradient
                largest = float(values.abs().max()) if values.numel() else 0.0
                seen[name] = max(seen.get(name, 0.0), largest) if math.isfinite(largest) else math.inf
                rms[name] = max(rms.get(name, 0.0), float(values.float().square().mean().sqrt()))
        return False

    train_steps(subject, model, 1e-3, STEPS, subject.batch, note)
    return _judge(model, seen, rms)


def _judge(model: nn.Module, seen: dict[str, float], rms: dict[str, float]) -> Verdict:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    wild = [name for name, largest in seen.items() if not math.isfinite(largest)]
    if wild:
        action = "Look for square roots, logarithms and divisions at zero in these layers."
        return problem("gradient_not_finite", f"Gradients are not finite in {listed(wild)}.", action, tensors=wild[:20])
    without = [name for name in trainable if name not in seen]
    if without:
        action = (
            "Look for detach(), .data, no_grad() or item() between them and the loss, or for layers that forward skips."
        )
        message = f"{listed(without)} never get a gradient: the loss does not depend on them."
        return problem("no_gradient", message, action, tensors=without[:20], of=len(trainable))
    weights = {name: rms[name] for name, p in trainable.items() if p.ndim >= 2}
    zero = [name for name in weights if seen[name] == 0]
    if zero:
        action = "Look for dead activations (large negative biases, a zero multiplied in) after these layers."
        message = f"The gradient of {listed(zero)} is zero in every step."
        return problem("zero_gradient", message, action, tensors=zero[:20], of=len(trainable))
    top = max(weights.values(), default=0.0)
    faded = [name for name, value in weights.items() if value < VANISHED * top]
    if faded:
        smallest = min(weights[name] for name in faded)
        message = f"The gradient of {listed(faded)} vanishes: {smallest:.1e} beside {top:.1e} elsewhere."
        return problem("vanishing_gradient", message, KEEP_SCALE, tensors=faded[:20])
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if frozen and len(frozen) > 0.5 * (len(frozen) + len(trainable)) and not trainable:
        return problem("no_gradient", "Every parameter is frozen.", "Set requires_grad.", tensors=frozen[:20])
    more = f"; {len(frozen)} tensors are frozen" if frozen else ""
    return ok("gradients", f"All {len(trainable)} trainable tensors get a gradient{more}.", frozen=len(frozen))


def decay_spares_norms(subject: Subject) -> Verdict:
    """Weight decay is for matrices; on norms and biases it pulls scales to zero."""
    code = "weight_decay"
    model = subject.model()
    decayed = {id(p) for p in decay_groups(model, 1.0)[0]["params"]}
    wrong = [name for name, p in model.named_parameters() if id(p) in decayed and _is_a_scale(name, p)]
    if wrong:
        message = f"Weight decay is on {listed(wrong)}, which look like scales or biases."
        action = "Give them one axis, or put them in a module whose name has norm in it."
        return warning("decay_on_norms", message, action, tensors=wrong[:20])
    return ok(code, "Weight decay is on matrices only, not on biases and norms.")


def _is_a_scale(name: str, parameter: nn.Parameter) -> bool:
    last = name.rpartition(".")[2].lower()
    is_vector = parameter.numel() == max(parameter.shape, default=1)
    return is_vector and last in ("gamma", "beta", "scale", "shift", "gain", "bias", "offset")


def _stray(loss: torch.Tensor, model: nn.Module) -> Iterator[str]:
    """The shapes of the tensors at the leaves of the loss's graph that are no parameters of the model."""
    ours = {id(p) for p in model.parameters()}
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor) and id(variable) not in ours:
            yield f"a tensor of shape {tuple(variable.shape)}"
        nodes.extend(following for following, _ in node.next_functions)


def _hidden(model: nn.Module) -> list[str]:
    """Modules and tensors in plain containers among the model's attributes, by name."""
    found = []
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_") and isinstance(value, list | tuple | dict):
                items: Any = value.values() if isinstance(value, dict) else value
                if any(isinstance(item, nn.Module | nn.Parameter) for item in items):
                    found.append(f"{path}.{name}".lstrip("."))
    return found


def term_of(subject: Subject, model: nn.Module, batch: Any) -> tuple[float, Term | None]:
    """The value that a check follows: the loss's main term where it is known, else the loss itself."""
    loss, term = subject.look(model, batch)
    return (loss, None) if term is None else (term.value, term)
