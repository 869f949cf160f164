"""Where to start without a single run: learning rate, batch size and weight decay by published scaling rules.

The rules were fitted to decoder-only language models (60 million parameters and more, billions of tokens) trained with
AdamW, a warm-up and a decaying rate; elsewhere they are a guess. They disagree by factors of two to four, which is what
a search is for: the range is theirs, widened by `MARGIN` at both ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tuner.errors import TunerError

MARGIN = 2.0
"""The factor by which a range is wider than what the rules say."""
WEIGHT_DECAY, WEIGHT_DECAYS = 0.1, (0.01, 0.3)
"""What the rules' own runs used, and what is worth a search around it."""
WARMUP = 0.06
SMALLEST, FEWEST = 2e7, 1e8
"""Parameters and tokens below which no rule was fitted."""
EXPONENT = 0.5
"""The rate grows with this power of the batch for Adam (Malladi et al. 2022, arXiv 2205.10287); a prior: 0.3 to 1."""
OPTIMIZERS = ("adamw", "lamb", "sgd", "adafactor")


class NoRuleError(TunerError):
    """No rule says anything for these numbers."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What one source says: the learning rate, and the batch in tokens that it belongs to."""

    source: str
    lr: float
    batch_tokens: float

    def at(self, batch_tokens: float) -> float:
        """Its rate at another batch."""
        return float(self.lr * (batch_tokens / self.batch_tokens) ** EXPONENT)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Centres and ranges of a search, the rules behind them, and what to keep in mind.

    `timescale` is the fraction of the training over which AdamW's weights are an average: batch / (rate x decay x
    tokens) (Wang & Aitchison 2024, arXiv 2405.13698). Whoever changes the batch or the tokens keeps it by the decay.
    """

    lr: float
    lr_range: tuple[float, float]
    batch_tokens: float
    weight_decay: float
    weight_decay_range: tuple[float, float]
    warmup: float
    timescale: float | None
    rules: Sequence[Rule]
    notes: Sequence[str]


def kaplan(parameters: float) -> Rule:
    """Kaplan et al. 2020 (arXiv 2001.08361), equation D.1; Adam, batches of 2**19 tokens."""
    return Rule("Kaplan et al. 2020, arXiv 2001.08361, eq. D.1", 0.003239 - 0.0001395 * math.log(parameters), 2.0**19)


def deepseek(parameters: float, tokens: float) -> Rule:
    """DeepSeek-AI 2024 (arXiv 2401.02954), equation 1, by compute: 6 x parameters x tokens."""
    compute = 6 * parameters * tokens
    lr, batch = 0.3118 * compute**-0.1250, 0.2920 * compute**0.3271
    return Rule("DeepSeek-AI 2024, arXiv 2401.02954, eq. 1", lr, batch)


def step_law(parameters: float, tokens: float) -> Rule:
    """Li et al. 2025 (arXiv 2503.04715), equation 1."""
    lr, batch = 1.79 * parameters**-0.713 * tokens**0.307, 0.58 * tokens**0.571
    return Rule("Li et al. 2025, arXiv 2503.04715, eq. 1", lr, batch)


def suggest(
    parameters: float, tokens: float, optimizer: str = "adamw", batch_tokens: float | None = None
) -> Suggestion:
    """What to start from. Raises NoRuleError naming the field, the value and the remedy."""
    for name, value in (("parameters", parameters), ("tokens", tokens), ("batch_tokens", batch_tokens)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise NoRuleError(f"{name} = {value:g} must be a number above 0, such as 124e6.")
    if batch_tokens is not None and batch_tokens > tokens:
        raise NoRuleError(f"batch_tokens = {batch_tokens:g} is more than all tokens ({tokens:g}): take a smaller one.")
    if optimizer not in OPTIMIZERS:
        raise NoRuleError(f"optimizer = {optimizer!r} is not known: one of {', '.join(OPTIMIZERS)}.")
    if parameters > 1e10:
        raise NoRuleError(f"parameters = {parameters:g} is beyond what the rules were fitted to (10 billion).")
    if optimizer == "adafactor":
        return _adafactor(tokens, batch_tokens or step_law(parameters, tokens).batch_tokens)
    if optimizer != "adamw":
        raise NoRuleError(
            f"optimizer = {optimizer!r}: no published rule gives its rate from parameters and tokens. Search it over "
            f"{'1e-3 to 3e-2' if optimizer == 'lamb' else '1e-2 to 3'}, on a log scale, or suggest for adamw."
        )
    rules = [kaplan(parameters), deepseek(parameters, tokens), step_law(parameters, tokens)]
    batch = batch_tokens or math.sqrt(rules[1].batch_tokens * rules[2].batch_tokens)
    batch = min(batch, tokens / 100) if batch_tokens is None else batch
    rates = [rule.at(batch) for rule in rules]
    lr = math.prod(rates) ** (1 / len(rates))
    timescale = batch / (lr * WEIGHT_DECAY * tokens)
    lr_range = (min(rates) / MARGIN, max(rates) * MARGIN)
    notes = _notes(parameters, tokens, batch, rules[2].batch_tokens)
    return Suggestion(lr, lr_range, batch, WEIGHT_DECAY, WEIGHT_DECAYS, WARMUP, timescale, rules, notes)


def _adafactor(tokens: float, batch: float) -> Suggestion:
    """Shazeer & Stern 2018 (arXiv 1804.04235), section 8: steps relative to the weights, at most 1e-2."""
    rule = Rule("Shazeer & Stern 2018, arXiv 1804.04235, section 8", 1e-2, batch)
    notes = [f"{tokens / batch:.0f} steps; the rate is relative to the size of the weights, whatever the model's size."]
    return Suggestion(1e-2, (1e-3, 3e-2), batch, 0.0, (0.0, 0.1), WARMUP, None, [rule], notes)


def _notes(parameters: float, tokens: float, batch: float, best: float) -> list[str]:
    notes = [f"{tokens / batch:.0f} steps of {batch:.3g} tokens, {tokens / parameters:.3g} tokens per parameter."]
    if parameters < SMALLEST or tokens < FEWEST:
        notes.append("Smaller than anything that the rules were fitted to: search wider, and trust the runs.")
    if not 1 / 8 < batch / best < 8:
        notes.append(f"The batch is far from the best one by Li et al. ({best:.3g} tokens): the rate is a guess there.")
    return notes
