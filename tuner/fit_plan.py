"""Which micro-batch to prove next, and what the proofs so far come to; pure.

Predictions give the shape of the peak over the micro-batch, proofs its true height: the largest size that the corrected
curve puts under the cap is proven next, from below, so that a proof seldom fails. The cap is what may be used of the
limit; a proof runs under the limit itself, so that one that is a little too large is measured instead of killed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

MAX_PROOFS = 4
ENOUGH_PROOFS = 3  # once something is proven, where there are predictions
AIM = 0.97  # of the cap: proofs differ a little from run to run
NEAR = 0.957  # of the cap: 88 % of the limit where the cap is 92 %
GAIN = 1.02  # of the proven size: less is not worth another proof
LINE_AT = (4, 8)  # never 1 and 2: kernels choose other ways there, and the line comes out up to 20 % low
HOPELESS = 1.5  # expected so far over the cap, only the smallest size is worth a proof
OVER_AT = 1.06  # of the cap: what was ended there would have taken more than it, nobody knows how much
UP = 1.15  # of the proven size: a heap's holes differ by some percent from size to size
DIED_AT = 1.05  # of the limit: what has died took more than it, nobody knows how much
SLOPES = (0.6, 1.5)  # of measured to expected growth


@dataclass(frozen=True, slots=True)
class Predicted:
    """Bytes of tensors at the peak of a training step, and of an evaluation."""

    micro_batch: int
    training_bytes: int
    evaluation_bytes: int


@dataclass(frozen=True, slots=True)
class Proof:
    """One proof run. `peak_bytes` is None where it died; `stage` is what it died in, `reason` of what.

    One that `was_ended` was over the cap: its peak is only what it had taken up to then.
    """

    micro_batch: int
    accumulation: int
    fits: bool
    peak_bytes: int | None
    stage: str | None = None
    reason: str | None = None
    seconds: float = 0.0
    samples_per_s: float | None = None
    was_ended: bool = False


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a device takes for tensors before anything is measured: a prior, which the first proof corrects.

    Evaluation reuses what training has given back, so that the greater of the two counts.
    """

    training: float
    evaluation: float
    fixed_bytes: int

    def height(self, training_bytes: float, evaluation_bytes: float) -> float:
        return max(self.training * training_bytes, self.evaluation * evaluation_bytes) + self.fixed_bytes


HOST = Overhead(2.1, 1.8, 4 << 20)  # the C library's heap has holes
HOST_MAPPED = Overhead(1.2, 1.2, 4 << 20)  # it has not where large tensors are mappings; convolutions reorder in a copy
GPU = Overhead(1.08, 1.08, 700 << 20)  # the caching allocator's rounding; the CUDA context


@dataclass(frozen=True)
class FitPlan:
    """The sizes that matter, in ascending order, and the bytes that they may take."""

    sizes: Sequence[int]
    limit_bytes: int
    cap_bytes: int
    overhead: Overhead
    predictions: list[Predicted] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    known: list[Proof] = field(default_factory=list)

    @property
    def evidence(self) -> list[Proof]:
        """What earlier jobs have proven, and what this one has."""
        return [*self.known, *self.proofs]

    @property
    def proven(self) -> Proof | None:
        """The largest size that fits."""
        return max((p for p in self.evidence if p.fits), key=lambda p: p.micro_batch, default=None)

    def judged(self, proof: Proof, limit_bytes: int, micro_batch: int) -> Proof | None:
        """What an earlier proof says here; it was made under `limit_bytes`, and in the end `micro_batch` was used.

        None where that is nothing: what has died under a smaller limit may fit into this one.
        """
        has_failed_later = proof.fits and proof.micro_batch > micro_batch
        if proof.peak_bytes is None or has_failed_later:
            return replace(proof, fits=False) if limit_bytes >= self.limit_bytes else None
        fits = proof.peak_bytes <= self.cap_bytes
        return None if proof.was_ended and fits else replace(proof, fits=fits)

    def next_size(self) -> int | None:
        """The size to prove now; None when the proofs have come to their end."""
        proven = self.proven
        over = min((p.micro_batch for p in self.evidence if not p.fits), default=None)
        low = proven.micro_batch if proven else 0
        between = [size for size in self.sizes if size > low and (over is None or size < over)]
        if not between or len(self.proofs) >= MAX_PROOFS:
            return None
        if proven is not None and (proven.peak_bytes or 0) >= NEAR * self.cap_bytes:
            return None
        if proven is not None and self.predictions and len(self.proofs) >= ENOUGH_PROOFS:
            return None
        deaths = sum(p.peak_bytes is None for p in self.proofs)  # what is over by a measured peak corrects the line
        aim = AIM * self.cap_bytes * (1.0 if proven else 0.8**deaths)
        smallest = self.expected(between[0])
        if smallest is None:
            return self._unforetold(between, proven)
        under = [size for size in between if (self.expected(size) or 0.0) <= aim]
        if proven is not None:
            return self._upwards(low, under)
        if under:
            return under[-1]
        is_hopeless = smallest > HOPELESS * self.cap_bytes or len(self.proofs) == MAX_PROOFS - 1
        return between[0] if is_hopeless else between[(len(between) - 1) // 2]

    def _upwards(self, low: int, under: Sequence[int]) -> int | None:
        """Of the sizes that should fit the largest within `UP` or half of the way; None where that gains little."""
        if not under or under[-1] < GAIN * low:
            return None
        most = max(UP * low, (low + under[-1]) / 2) if self.predictions else under[-1]
        worth = [size for size in under if size >= GAIN * low]
        return max((size for size in worth if size <= most), default=worth[0])

    def _unforetold(self, between: Sequence[int], proven: Proof | None) -> int:
        """Without any figure: the largest first, then by halves, the smallest with the last proof."""
        if not self.proofs:
            return between[-1]
        if proven is None and len(self.proofs) == MAX_PROOFS - 1:
            return between[0]
        return between[len(between) // 2]

    def expected(self, size: int) -> float | None:
        """The peak in bytes for this size: the predictions, corrected by the proofs; None without either."""
        measured = self._heights()
        if not self.predictions:
            return through(measured, size) if any(p.peak_bytes is not None for p in self.evidence) else None
        if not measured:
            return self.prior(size)
        points = [(self.prior(at), height) for at, height in measured]
        at = self.prior(size)
        if len(points) > 1:
            below, above = bracket(points, at)
            slope = (above[1] - below[1]) / max(1.0, above[0] - below[0])
        else:
            below, fixed = points[0], self.overhead.fixed_bytes
            slope = (below[1] - fixed) / max(1.0, below[0] - fixed)
        if not below[0] <= at <= points[-1][0]:  # beyond what is measured two noisy proofs do not tell much
            slope = min(max(slope, SLOPES[0]), SLOPES[1])
            below = points[-1] if at > below[0] else points[0]
        return below[1] + slope * (at - below[0])

    def _heights(self) -> list[tuple[int, float]]:
        """The peaks of the proofs by size; of those that died or were ended the smallest, the others tell nothing."""
        heights = {p.micro_batch: float(p.peak_bytes) for p in self.evidence if p.peak_bytes and not p.was_ended}
        unknown = [p for p in self.evidence if not p.peak_bytes or p.was_ended]
        if unknown:
            first = min(unknown, key=lambda p: p.micro_batch)
            least = DIED_AT * self.limit_bytes if first.peak_bytes is None else OVER_AT * self.cap_bytes
            heights.setdefault(first.micro_batch, max(least, first.peak_bytes or 0))
        return sorted(heights.items())

    def prior(self, size: int) -> float:
        """The peak in bytes by prediction alone: of training and of evaluation each a line through its predictions."""
        points = sorted(self.predictions, key=lambda p: p.micro_batch)
        training = through([(p.micro_batch, float(p.training_bytes)) for p in points], size)
        evaluation = through([(p.micro_batch, float(p.evaluation_bytes)) for p in points], size)
        return self.overhead.height(training, evaluation)

    def to_json(self) -> dict[str, Any]:
        """What is known, in plain values."""
        proven, following = self.proven, self.following()
        return {
            "micro_batch": proven.micro_batch if proven else None,
            "peak_bytes": proven.peak_bytes if proven else None,
            "limit_bytes": self.limit_bytes,
            "cap_bytes": self.cap_bytes,
            "samples_per_s": proven.samples_per_s if proven else None,
            "next": None if following is None else {"micro_batch": following, "expected_bytes": self._whole(following)},
            "known": [as_json(p) for p in self.known],
            "predictions": [as_json(p) for p in self.predictions],
            "proofs": [as_json(p) for p in self.proofs],
        }

    def following(self) -> int | None:
        """The next size above the proven one; None where there is none."""
        low = self.proven.micro_batch if self.proven else 0
        return next((size for size in self.sizes if size > low), None)

    def _whole(self, size: int) -> int | None:
        expected = self.expected(size)
        return None if expected is None else round(expected)


def as_json(value: Predicted | Proof) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def through(points: Sequence[tuple[float, float]], x: float) -> float:
    """The broken line through `points` (ascending), its first and last piece going on.

    One point is no line: it is as high below, since nothing says what would go away, and in proportion above.
    """
    if len(points) == 1:
        return points[0][1] * max(1.0, x / points[0][0])
    (x0, y0), (x1, y1) = bracket(points, x)
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def bracket(points: Sequence[tuple[float, float]], x: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """The two neighbours among `points` (ascending, two at least) that `x` is between, or nearest to."""
    return next((pair for pair in pairwise(points) if x <= pair[1][0]), (points[-2], points[-1]))


def sizes_for(batches: Iterable[int]) -> list[int]:
    """The micro-batches that any of these batches (samples of one process at a step) can be cut into."""
    found: set[int] = set()
    for batch in set(batches):
        found.update(divisor for divisor in range(1, batch + 1) if batch % divisor == 0)
    return sorted(found)
