"""The statistics of the confirm phase: which finalists beat the baseline, and by how much.

Every finalist and the baseline train on the same fresh seeds, so each seed gives one paired difference, counted
positive when the finalist is better. A finalist is *proven* by

* a one-sided paired t test (Student 1908) of "the mean difference is above 0", or
* the exact one-sided sign test (Arbuthnot 1710; Dixon & Mood 1946) where a run failed or diverged and so has no value,

at the level that Holm's step-down procedure (Holm 1979) gives it among all finalists. There are two looks at the data
(after 5 seeds, and after 8 for what is undecided); Bonferroni splits the family's level of 0.05 evenly between them. So
the chance that a job proves any finalist that is no better than its baseline is at most 0.05.

The interval of a difference is the t interval at the finalist's own Holm level: it excludes 0 on the low side exactly
when the finalist is proven.

Not protected:
* The finalists were picked because they looked good on validation data with the search's seed. Hence fresh seeds, and
  the test split where there is one; without a test split the difference is still optimistic about new data.
* The intervals say what the tests say; they are not simultaneous confidence intervals for all finalists.
* The t test takes the differences as roughly normal. Their being all equal, as where the seed has no effect, is taken
  as proof of their sign, but says nothing about chance in training: such a judgement has no `confidence`.
* Which test is used depends on whether runs failed, which is itself chance.
* Only chance in training (seeds) is covered, not whether the data resemble tomorrow's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tuner.student import upper_quantile, upper_tail
from workloads.manifest import Direction

FAMILY_LEVEL = 0.05
CONFIDENCE = 1 - FAMILY_LEVEL
LOOKS = 2

Status = Literal["proven", "undecided", "not_better"]
Test = Literal["paired t", "sign", "equal differences", "none"]
Scores = Mapping[int, float | None]
"""A configuration's value by seed; None, NaN or an infinity is a run that failed."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What confirmation says about one finalist.

    `difference` is the mean improvement over the baseline, positive when better whatever the direction; it and
    `interval` are None where a run failed. `mean` and `baseline_mean` are over the runs that did not fail, None
    without any. `confidence` holds for all finalists of the job together, None where all differences are equal.
    `p_value` is this finalist's own, before any correction; `level` is what it was compared with. `seeds` is the number
    of pairs.
    """

    status: Status
    mean: float | None
    baseline_mean: float | None
    difference: float | None
    interval: tuple[float, float] | None
    confidence: float | None
    p_value: float
    level: float
    seeds: int
    failures: int
    test: Test


@dataclass(frozen=True, slots=True)
class _Evidence:
    """The pairs of one finalist, and its test before correction. `leads`: it looks better, proven or not."""

    differences: tuple[float | None, ...]
    p_value: float
    leads: bool
    test: Test


def judge(
    baseline: Scores, finalists: Mapping[int, Scores], direction: Direction, look: int, looks: int = LOOKS
) -> dict[int, Judgement]:
    """A judgement for each finalist (by trial number) on the seeds that it shares with the baseline.

    Pass all finalists at every look, those with no new seeds as they were: the correction needs the whole family, and
    what was proven with the same seeds stays proven.
    """
    if not 1 <= look <= looks:
        raise ValueError(f"look is {look}; it has to be 1 to {looks}")
    evidence = {trial: _evidence(baseline, scores, direction) for trial, scores in finalists.items()}
    levels = holm_levels([e.p_value for e in evidence.values()], FAMILY_LEVEL / looks)
    return {
        trial: _judgement(baseline, finalists[trial], evidence[trial], level)
        for trial, level in zip(evidence, levels, strict=True)
    }


def needs_more(judgements: Mapping[int, Judgement]) -> bool:
    """Whether another look could help: a finalist is better on average and not yet proven. Ask before the last look."""
    return bool(undecided(judgements))


def undecided(judgements: Mapping[int, Judgement]) -> list[int]:
    """The trials that should go on to more seeds."""
    return [trial for trial, judgement in judgements.items() if judgement.status == "undecided"]


def rank(judgements: Mapping[int, Judgement]) -> list[int]:
    """Trials from best to worst: proven ones first, then by difference; without one, after those that have one."""
    order = {"proven": 0, "undecided": 1, "not_better": 2}

    def key(trial: int) -> tuple[int, float, float, int]:
        judgement = judgements[trial]
        difference = -math.inf if judgement.difference is None else judgement.difference
        return order[judgement.status], -difference, judgement.p_value, trial

    return sorted(judgements, key=key)


def holm_levels(p_values: Sequence[float], level: float) -> list[float]:
    """The level of each p-value in Holm's step-down order; from the first that fails on, all have that step's level.

    A p-value is significant exactly when it is below its own level here.
    """
    levels = [0.0] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    step = 0
    for index in order:
        levels[index] = level / (len(p_values) - step)
        if p_values[index] < levels[index]:
            step += 1
    return levels


def sign_test(wins: int, pairs: int) -> float:
    """P(at least `wins` of `pairs` fair coins); 1 without pairs."""
    return sum(math.comb(pairs, k) for k in range(wins, pairs + 1)) / float(2**pairs)


def paired_t_test(differences: Sequence[float]) -> float:
    """The one-sided p-value of "the mean is above 0", for two or more finite differences that are not all equal."""
    _, mean, error = _moments(differences)
    return upper_tail(mean / error, len(differences) - 1)


def _evidence(baseline: Scores, scores: Scores, direction: Direction) -> _Evidence:
    seeds = [seed for seed in baseline if seed in scores]
    pairs = [(baseline[seed], scores[seed]) for seed in seeds]
    differences = tuple(_difference(ours, theirs, direction) for theirs, ours in pairs)
    wins = sum(_is_win(ours, theirs, direction) for theirs, ours in pairs)
    finite = [difference for difference in differences if difference is not None]
    if len(finite) < len(differences):
        leads = 2 * wins > len(pairs)
        return _Evidence(differences, sign_test(wins, len(pairs)), leads, "sign")
    if len(finite) < 2:
        return _Evidence(differences, 1.0, not finite or finite[0] > 0, "none")
    if min(finite) == max(finite):
        return _Evidence(differences, 0.0 if finite[0] > 0 else 1.0, finite[0] > 0, "equal differences")
    p_value = paired_t_test(finite)
    return _Evidence(differences, p_value, p_value < 0.5, "paired t")


def _judgement(baseline: Scores, scores: Scores, evidence: _Evidence, level: float) -> Judgement:
    seeds = [seed for seed in baseline if seed in scores]
    difference: float | None = None
    interval: tuple[float, float] | None = None
    if seeds and evidence.test != "sign":
        finite = [d for d in evidence.differences if d is not None]
        difference = _mean(finite)
        if evidence.test == "equal differences":
            difference = finite[0]
            interval = (difference, difference)
        elif evidence.test == "paired t":
            scale, mean, error = _moments(finite)
            half = upper_quantile(level, len(finite) - 1) * error
            interval = (_clamped((mean - half) * scale), _clamped((mean + half) * scale))
    is_proven = evidence.p_value < level
    return Judgement(
        status="proven" if is_proven else "undecided" if evidence.leads else "not_better",
        mean=_mean(scores[seed] for seed in seeds),
        baseline_mean=_mean(baseline[seed] for seed in seeds),
        difference=difference,
        interval=interval,
        confidence=None if evidence.test == "equal differences" else CONFIDENCE,
        p_value=evidence.p_value,
        level=level,
        seeds=len(seeds),
        failures=sum(not _is_finite(scores[seed]) for seed in seeds),
        test=evidence.test,
    )


def _difference(ours: float | None, theirs: float | None, direction: Direction) -> float | None:
    """How much better ours is; None where a run failed (or the numbers are too far apart to subtract)."""
    if ours is None or theirs is None:
        return None
    difference = theirs - ours if direction == "minimize" else ours - theirs
    return difference if math.isfinite(difference) else None


def _is_win(ours: float | None, theirs: float | None, direction: Direction) -> bool:
    """Whether ours is strictly better; a failed run never is, and loses against one that did not fail."""
    if ours is None or not math.isfinite(ours):
        return False
    if theirs is None or not math.isfinite(theirs):
        return True
    return ours < theirs if direction == "minimize" else ours > theirs


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _mean(values: Iterable[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return math.fsum(value / len(finite) for value in finite) if finite else None


def _clamped(number: float) -> float:
    """JSON holds no infinity."""
    return min(max(number, -sys.float_info.max), sys.float_info.max)


def _moments(differences: Sequence[float]) -> tuple[float, float, float]:
    """A scale, and the mean and its standard error in units of it, so that squares neither overflow nor vanish."""
    count = len(differences)
    scale = max(abs(difference) for difference in differences)
    scaled = [difference / scale for difference in differences]
    mean = math.fsum(scaled) / count
    variance = math.fsum((value - mean) ** 2 for value in scaled) / (count - 1)
    return scale, mean, math.sqrt(variance / count)
