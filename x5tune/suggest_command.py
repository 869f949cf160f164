"""`suggest`: where a search should start by published scaling rules; needs no service and runs nothing."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from x5tune import screen
from x5tune.errors import UsageError

if TYPE_CHECKING:
    from tuner.scaling_rules import Suggestion


def suggest(
    *,
    parameters: Annotated[float, typer.Option(metavar="COUNT", help="The model's parameters, such as 124e6.")],
    tokens: Annotated[float, typer.Option(metavar="COUNT", help="Tokens that it is trained on, such as 2.5e9.")],
    optimizer: Annotated[str, typer.Option(metavar="NAME", help="adamw or adafactor.")] = "adamw",
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="SAMPLES", min=1, help="The effective batch; else suggested.")
    ] = None,
    sample_tokens: Annotated[
        int, typer.Option("--sample-tokens", metavar="COUNT", min=1, help="Tokens of one sample.")
    ] = 1024,
    as_json: Annotated[bool, typer.Option("--json", help="Print the suggestion as JSON.")] = False,
) -> None:
    """Say where to search learning rate, batch size and weight decay of a language model, by published rules.

    Prints a `search:` to paste into a job, and where its numbers come from.

    Example: x5tune suggest --parameters 124e6 --tokens 2.5e9
    """
    from tuner import scaling_rules

    batch_tokens = None if batch_size is None else float(batch_size * sample_tokens)
    try:
        found = scaling_rules.suggest(parameters, tokens, optimizer, batch_tokens)
        samples = batch_size or 2 ** max(0, round(math.log2(found.batch_tokens / sample_tokens)))
        if batch_size is None and samples * sample_tokens <= tokens:
            found = scaling_rules.suggest(parameters, tokens, optimizer, float(samples * sample_tokens))
    except scaling_rules.NoRuleError as error:
        raise UsageError(str(error)) from error
    if as_json:
        screen.write_json({**asdict(found), "batch_size": samples, "sample_tokens": sample_tokens})
    else:
        typer.echo("\n".join(_lines(found, samples, is_batch_given=batch_size is not None)))


def _lines(found: Suggestion, samples: int, *, is_batch_given: bool) -> list[str]:
    low, high = found.lr_range
    decay_low, decay_high = found.weight_decay_range
    choices = sorted({max(1, samples // 2), samples, samples * 2})
    decay = f"{{low: {decay_low:g}, high: {decay_high:g}, log: true}}" if decay_low else f"{found.weight_decay:g}"
    lines = [
        "search:",
        f"  lr:           {{low: {low:.2g}, high: {high:.2g}, log: true}}",
        f"  batch_size:   {samples if is_batch_given else f'{{choices: {choices}}}'}",
        f"  weight_decay: {decay}",
        f"  warmup:       {found.warmup:g}",
        f"baseline: {{lr: {found.lr:.2g}, batch_size: {samples}, weight_decay: {found.weight_decay:g}}}",
        "",
    ]
    lines += [f"# {rule.source}: lr {rule.lr:.2g} at {rule.batch_tokens:.3g} tokens a batch" for rule in found.rules]
    if found.timescale is not None:
        lines.append(f"# The baseline's weights average over {found.timescale:.0%} of the training.")
    return lines + [f"# {note}" for note in found.notes]
