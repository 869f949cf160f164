"""Which batch sizes cannot be made from micro-batches that fit: they are left out of the search, one by one. Pure.

batch_size = micro_batch x accumulation x processes holds exactly, so the micro-batch is a divisor of one process's
share: the nearest one that is not above what fits. Code that cannot cut its batch takes its share in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.derivation import largest_divisor
from tuner.jobspec import Choices, Fixed, Range, ResolvedJob


@dataclass(frozen=True, slots=True)
class Cut:
    """`largest` is the largest micro-batch that fits. `can_cut`: whether the workload takes its batch in pieces."""

    largest: int
    can_cut: bool = True

    def why_not(self, job: ResolvedJob, batch_size: int) -> str | None:
        """Why this batch cannot be made; None where it can."""
        share, most = batch_size // job.resources.processes, job.limits.max_accumulation
        of_one = "" if job.resources.processes == 1 else f", {share} a process,"
        if not self.can_cut:
            if share <= self.largest:
                return None
            return (
                f"{batch_size}{of_one} goes in one piece, and {self.largest} is the largest that is proven to fit; "
                "have the code take micro_batch and accumulation, and larger batches are cut"
            )
        divisor = largest_divisor(share, self.largest)
        if most is None or share // divisor <= most:
            return None
        return (
            f"of the micro-batches up to {self.largest}, which fit, {divisor} is the largest that divides "
            f"{share}: that takes an accumulation of {share // divisor}, and limits.max_accumulation is {most}"
        )


def left_out(job: ResolvedJob, cut: Cut) -> list[dict[str, Any]]:
    """What of `search.batch_size` cannot be made, `{batch_size, reason}`; of a range its upper part, `{low, high}`."""
    parameter = job.space["batch_size"]
    if isinstance(parameter, Range):
        high, first = int(parameter.high), cut.largest * job.resources.processes + 1
        reason = None if cut.can_cut else cut.why_not(job, high)
        span = {"low": max(first, int(parameter.low)), "high": high}
        return [] if reason is None else [{"batch_size": span, "reason": reason}]
    values = parameter.values if isinstance(parameter, Choices) else (parameter.value,)
    reasons = [(value, cut.why_not(job, int(value))) for value in values]
    return [{"batch_size": value, "reason": reason} for value, reason in reasons if reason is not None]


def without(job: ResolvedJob, entries: Sequence[Mapping[str, Any]]) -> ResolvedJob | None:
    """The job without what is left out; None where no batch size is left. To do it again changes nothing.

    A baseline among it starts with the nearest batch size below it that is left, else with the smallest.
    """
    gone = [entry["batch_size"] for entry in entries]
    if not gone:
        return job
    parameter = job.space["batch_size"]
    start = int(job.baseline["batch_size"])
    if isinstance(parameter, Fixed):
        return None if parameter.value in gone else job
    if isinstance(parameter, Choices):
        left = [value for value in parameter.values if value not in gone]
        if not left:
            return None
        below = [value for value in left if value <= start]
        kept: Choices | Range = replace(parameter, values=tuple(left))
        start = max(below) if below else min(left)
    else:
        high = min(int(parameter.high), gone[0]["low"] - 1)
        if high < parameter.low:
            return None
        kept = replace(parameter, high=high) if high > parameter.low else Choices((high,), parameter.when)
        start = min(start, high) if high > parameter.low else high
    space = {**job.space, "batch_size": kept}
    return replace(job, space=space, baseline={**job.baseline, "batch_size": start})
