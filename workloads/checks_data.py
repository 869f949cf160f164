"""Checks of a diagnosis: the data, and whether they reach the loss."""

from __future__ import annotations

import math
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from workloads.input_reach import Changed, Outermost, Trace, fading, lost_at, shuffled
from workloads.subject import Subject, train_steps
from workloads.verdicts import Verdict, ok, problem, skipped, warning

SEVERAL, MANY = 64, 256
FEW_STEPS = 10
AMONG, MIDDLE = 7, 3
"""A batch of a size that hardly anything else has, and the place of the sample that is looked at."""
MIXED = 1e-3  # relative
CHANGED_IDS = 0.0005
WORD = 4
FADED = 1e-3
KEEP_SCALE = "Use residual connections, norms or other activations, or initial weights that keep the scale."


def data_are_steady(subject: Subject) -> Verdict:
    """A sample has to be the same whenever, and after whatever, it is asked for; different ones have to differ."""
    code = "data"
    count = min(SEVERAL, subject.count)
    indices = torch.randperm(subject.count, generator=torch.Generator().manual_seed(0))[:count]
    if count < 2:
        return problem("one_sample", "There is one training sample only.", "Look at what train_data returns.")
    first, back = _leaves(subject.rows(indices)), _leaves(subject.rows(indices.flip(0)))
    bad = [i for i, leaf in enumerate(first) if leaf.is_floating_point() and not bool(leaf.isfinite().all())]
    if bad:
        action = "Remove or repair samples with NaN or infinite values."
        return problem("data_not_finite", f"Of {count} training samples some hold numbers that are not finite.", action)
    rows = [leaf for leaf in first if leaf.ndim > 0 and len(leaf) == count]
    if rows and all(bool((leaf == leaf[:1]).all()) for leaf in rows):
        action = "Look at how the dataset uses its index, and at the reading of the files."
        return problem("data_constant", f"{count} different training samples are all the same.", action, samples=count)
    moved = [
        (a, b.flip(0))
        for a, b in zip(first, back, strict=False)
        if a.ndim > 0 and len(a) == count and a.shape == b.shape
    ]
    whole = [(a, b) for a, b in moved if not a.is_floating_point() and a.numel() == count]
    changed = [float((a != b).float().mean()) for a, b in whole]
    if changed and max(changed) > 0.05:
        message = f"Asked for again in another order, {max(changed):.0%} of the samples have another label."
        action = "__getitem__ has to give the sample of its index: do not go through a file or an iterator in order."
        return problem("shuffling_broken", message, action, changed=max(changed))
    return ok(code, f"{subject.count} training samples; asked for again, {count} of them are the same.")


def inputs_reach_the_loss(subject: Subject) -> Verdict:
    """Inputs shuffled against the labels, and inputs of zeros, have to change the loss of a fresh model."""
    fresh = _reach(subject, subject.model(is_training=False))
    if fresh.level != "problem":
        return fresh
    model = subject.model()  # weights that start at zero let nothing through before the first step
    train_steps(subject, model, 1e-3, FEW_STEPS, subject.batch)
    return _reach(subject, model.eval())


def _reach(subject: Subject, model: nn.Module) -> Verdict:
    code = "inputs"
    batch = subject.batch(0, max(2, min(SEVERAL, subject.settings.micro_batch)))
    with Trace(model) as before:
        plain = subject.look(model, batch)[0]
    changes = {}
    for name, change in (("shuffled", shuffled(1)), ("zeroed", torch.zeros_like)):
        with Changed(model, change) as changed, Trace(model) as after:
            try:
                changes[name] = subject.look(model, batch)[0]
            except (RuntimeError, IndexError, ValueError):  # zeros may be no inputs at all
                changes[name] = math.nan
        if name == "shuffled":
            given, where = changed.inputs, lost_at(before, after)
    if not given:
        return skipped(code, "The loss calls no module of the model, so what it is given cannot be seen.")
    if all(bool((t == t[:1]).all()) for t in given if t.ndim > 0 and len(t) > 1):
        action = "Look at the reading of the data, and at what the loss hands to the model."
        message = f"The model is given the same for all {subject.settings.micro_batch} samples of a batch."
        return problem("data_ignored", message, action)
    if any(not math.isclose(value, plain, rel_tol=1e-6, abs_tol=1e-9) for value in changes.values()):
        return ok(code, f"Shuffled inputs change the loss from {plain:.4g} to {changes['shuffled']:.4g}.", loss=plain)
    evidence = {"loss": plain, "shuffled": changes["shuffled"], "zeroed": changes["zeroed"]}
    if where is not None and fading(before, after, where) < FADED:
        message = f"What the model is given fades from layer to layer, and nothing of it is left behind {where}."
        return problem("vanishing_gradient", message, KEEP_SCALE, **evidence)
    if where is not None:
        message = f"What the model is given is lost in {where}: it gives the same whatever it gets."
        return problem("dead_layer", message, f"Look at the initial weights and the activation of {where}.", **evidence)
    message = f"The loss is {plain:.4g} whatever the model is given: its inputs are ignored."
    action = "Look at the model's forward and at the loss: the inputs are dropped, zeroed or overwritten on the way."
    return problem("data_ignored", message, action, **evidence)


def samples_are_apart(subject: Subject) -> Verdict:
    """What a model gives for a sample in evaluation mode does not depend on the others of its batch."""
    code = "samples_mixed"
    if subject.count < 2 * AMONG:
        return skipped(code, f"There are {subject.count} training samples, too few to put one among others.")
    one, others = (subject.rows(rows) for rows in torch.split(torch.arange(2 * AMONG), AMONG))
    if [leaf.shape for leaf in _leaves(one)] != [leaf.shape for leaf in _leaves(others)]:
        return skipped(code, "Samples are of different sizes, so that one cannot be put among others.")
    model, given = subject.model(is_training=False), list[list[torch.Tensor]]()
    for batch in (one, tree_map(_amid, one, others)):
        torch.manual_seed(0)
        with Outermost(model) as outermost:
            subject.look(model, batch)
        given.append([t for t in outermost.outputs if t.ndim and len(t) == AMONG and t.shape[1:2] != (AMONG,)])
    apart = [_distance(a[MIDDLE], b[MIDDLE]) for a, b in zip(*given, strict=True)]
    if not apart:
        return skipped(code, "The model does not give something for each sample.")
    if max(apart) > MIXED:
        message = "In evaluation mode what the model gives for a sample depends on the other samples of its batch."
        action = "If that is not meant: look for batch and time in the wrong order, and for sums over the batch."
        return warning(code, message, action, relative_difference=max(apart))
    return ok(code, "What the model gives for a sample does not depend on the others of its batch.")


def _amid(one: Any, others: Any) -> Any:
    """The middle sample of one batch among those of another."""
    if not isinstance(one, torch.Tensor) or one.ndim == 0 or len(one) != AMONG:
        return one
    return torch.cat((others[:MIDDLE], one[MIDDLE : MIDDLE + 1], others[MIDDLE + 1 :]))


def _distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Relative to the size of what is compared."""
    return float((first - second).abs().max() / first.abs().max().clamp(min=1e-12)) if first.numel() else 0.0


def tokenizer_comes_round(subject: Subject) -> Verdict:
    """Where the workload, or its `tokenizer`, can encode and decode: ids to text and back have to be the same ids."""
    code = "tokenizer"
    owner: Any = getattr(subject.workload, "_trained", subject.workload)
    tools = [owner, getattr(owner, "tokenizer", None)]
    tool = next(
        (t for t in tools if callable(getattr(t, "encode", None)) and callable(getattr(t, "decode", None))), None
    )
    if tool is None:
        return skipped(code, "The workload has no encode and decode, and no tokenizer that has.")
    rows = _leaves(subject.batch(0, MANY))
    tokens = [leaf for leaf in rows if not leaf.is_floating_point() and leaf.ndim == 2]
    samples = [row.tolist() for row in tokens[0]] if tokens else []
    texts = getattr(owner, "texts", None) or []
    action = "decode(encode(text)) has to be the text: look at lost spaces, case, unknown tokens and normalisation."
    for text in list(texts)[:16]:
        back = tool.decode(_ids(tool.encode(text)))
        if back != text:
            return problem("tokenizer", f"{text[:60]!r} comes back from the tokenizer as {back[:60]!r}.", action)
    lost = 0
    for ids in map(_without_padding, samples):
        text = tool.decode(ids)
        again = _ids(tool.encode(text))
        lost += _changed(ids, again)
        if lost > CHANGED_IDS * sum(map(len, samples)):
            message = f"Token ids decoded to text ({text[:40]!r}) and encoded again are others."
            return problem("tokenizer", message, action, before=ids[:20], after=again[:20])
    return ok(code, f"{len(samples) + len(texts)} texts come back from the tokenizer as they were.")


def _ids(encoded: Any) -> list[int]:
    found = getattr(encoded, "ids", encoded)
    return [int(i) for i in found]


def _changed(ids: list[int], again: list[int]) -> int:
    """How many ids are others; the first and the last few do not count, which may be parts of words."""
    codes = SequenceMatcher(None, ids, again, autojunk=False).get_opcodes()
    inside = [(max(start, WORD), min(end, len(ids) - WORD)) for what, start, end, _, _ in codes if what != "equal"]
    return sum(max(0, end - start) for start, end in inside)


def _without_padding(ids: list[int]) -> list[int]:
    end = len(ids)
    while end > 1 and ids[end - 1] == ids[end - 2]:
        end -= 1
    return ids[:end]


def _leaves(batch: Any) -> list[torch.Tensor]:
    return [leaf.detach().cpu() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
