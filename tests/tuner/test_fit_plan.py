"""Which micro-batch is proven next, played against devices whose true peak is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.derivation import derive, largest_divisor
from tuner.fit_plan import GPU, HOST, LINE_AT, MAX_PROOFS, FitPlan, Overhead, Predicted, Proof, sizes_for

MIB = 1 << 20
LIMIT = 1000 * MIB
CAP = int(0.92 * LIMIT)


def plan(sizes: list[int], overhead: Overhead = HOST) -> FitPlan:
    return FitPlan(sizes, LIMIT, CAP, overhead)


def predict(a_plan: FitPlan, fixed_mib: float, per_sample_mib: float, evaluation_mib: float) -> None:
    for size in LINE_AT:
        training = int((fixed_mib + per_sample_mib * size) * MIB)
        a_plan.predictions.append(Predicted(size, training, int(evaluation_mib * MIB)))


def prove(a_plan: FitPlan, peak_mib: Callable[[int], float]) -> list[int]:
    """Play the proofs through; the sizes tried."""
    tried = []
    while (size := a_plan.next_size()) is not None:
        tried.append(size)
        peak = peak_mib(size) * MIB
        died = peak > LIMIT
        a_plan.proofs.append(Proof(size, 1, peak <= CAP, None if died else int(peak)))
    return tried


@settings(max_examples=200, deadline=None)
@given(
    fixed=st.floats(1, 300),
    per_sample=st.floats(0.2, 8),
    evaluation=st.floats(1, 200),
    ratio=st.floats(1.0, 1.45),
    extra=st.floats(0, 60),
)
def test_the_largest_size_is_found_within_five_percent_and_four_proofs(
    fixed: float, per_sample: float, evaluation: float, ratio: float, extra: float
) -> None:
    def peak(size: int) -> float:
        return ratio * max(fixed + per_sample * size, evaluation) + extra

    found = plan(list(range(1, 6000)), Overhead(1.4, 1.2, 4 * MIB))
    predict(found, fixed, per_sample, evaluation)
    tried = prove(found, peak)

    true = max(size for size in found.sizes if peak(size) <= 920)
    assert found.proven is not None
    assert found.proven.micro_batch <= true
    assert peak(found.proven.micro_batch) >= 0.88 * 920 or found.proven.micro_batch >= 0.95 * true
    assert len(tried) <= MAX_PROOFS


def test_where_everything_fits_the_first_proof_is_the_last() -> None:
    small = plan(sizes_for([16, 32, 64]))
    predict(small, 10, 0.5, 5)
    assert prove(small, lambda size: 20 + 0.6 * size) == [64]


def test_a_proof_that_is_a_little_too_large_is_measured_and_corrects_the_line() -> None:
    over = plan(list(range(1, 3000)), GPU)
    predict(over, 10, 1, 5)
    tried = prove(over, lambda size: 720 + 1.3 * size)

    assert over.proofs[0].peak_bytes is not None
    assert not over.proofs[0].fits
    assert over.proven is not None
    assert over.proven.micro_batch < tried[0]
    assert 720 + 1.3 * over.proven.micro_batch >= 0.9 * 920


def test_what_was_ended_at_its_cap_leads_downwards_by_a_tenth_and_again() -> None:
    steep = plan(list(range(1, 3000)), GPU)
    predict(steep, 10, 1, 5)
    sizes = []
    for _ in range(3):
        size = steep.next_size()
        assert size is not None
        sizes.append(size)
        steep.proofs.append(Proof(size, 2, False, int(1.01 * CAP), was_ended=True))

    for larger, smaller in pairwise(sizes):
        assert 0.5 * larger < smaller < 0.95 * larger


def test_one_step_upwards_is_a_seventh_of_what_is_proven_or_half_of_the_way() -> None:
    near, far = plan(list(range(1, 3000))), plan(list(range(1, 3000)))
    for a_plan, size in ((near, 155), (far, 60)):
        predict(a_plan, 10, 2, 5)
        a_plan.proofs.append(Proof(size, 2, True, int((100 + 4 * size) * MIB)))
    assert 155 * 1.1 < (near.next_size() or 0) <= 155 * 1.15
    assert 60 * 1.15 < (far.next_size() or 0) < 150


def test_with_three_proofs_and_one_of_them_fitting_it_is_enough() -> None:
    done = plan(list(range(1, 3000)))
    predict(done, 10, 2, 5)
    done.proofs.extend([Proof(100, 2, True, int(0.8 * CAP)), Proof(130, 2, False, CAP + 1, was_ended=True)])
    assert done.next_size() is not None
    done.proofs.append(Proof(120, 2, False, CAP + 1, was_ended=True))
    assert done.next_size() is None


def test_a_hundredth_more_is_not_worth_another_proof() -> None:
    near = plan(list(range(1, 1000)), GPU)
    predict(near, 10, 1, 5)
    near.proofs.append(Proof(100, 2, True, int(0.95 * CAP)))
    near.proofs.append(Proof(104, 2, False, int(1.01 * CAP)))

    assert near.next_size() is None


def test_what_was_ended_at_its_cap_says_nothing_under_a_larger_one() -> None:
    ended = Proof(100, 2, False, int(1.01 * CAP), was_ended=True)
    larger = FitPlan([100], 2 * LIMIT, 2 * CAP, HOST)

    assert larger.judged(ended, LIMIT, 50) is None
    assert plan([100]).judged(ended, LIMIT, 50) == ended


def test_dying_proofs_lead_downwards_to_the_smallest_size() -> None:
    heavy = plan(sizes_for([64]))
    predict(heavy, 10, 1, 5)
    tried = prove(heavy, lambda size: 2000)

    assert tried == sorted(tried, reverse=True)
    assert tried[-1] == 1
    assert heavy.proven is None


def test_what_is_far_too_large_for_the_limit_costs_one_proof() -> None:
    hopeless = plan(sizes_for([64]))
    predict(hopeless, 4000, 10, 5)
    assert prove(hopeless, lambda size: 5000 + 10 * size) == [1]


@pytest.mark.parametrize(("fits_up_to", "expected"), [(64, [64]), (16, [64, 8, 32, 16]), (0, [64, 8, 2, 1])])
def test_without_predictions_it_goes_down_by_halves(fits_up_to: int, expected: list[int]) -> None:
    def peak(size: int) -> float:
        return 100 + 5 * size if size <= fits_up_to else 2000

    assert prove(plan(sizes_for([64])), peak) == expected


def test_the_sizes_are_the_divisors_of_every_batch() -> None:
    assert sizes_for([12, 20]) == [1, 2, 3, 4, 5, 6, 10, 12, 20]


@given(batch=st.integers(1, 4096), largest=st.integers(1, 4096), processes=st.sampled_from([1, 2, 4]))
def test_the_effective_batch_is_kept_exactly(batch: int, largest: int, processes: int) -> None:
    derived = derive({"batch_size": batch * processes}, processes, largest)
    assert derived["micro_batch"] * derived["accumulation"] * processes == batch * processes
    assert 1 <= derived["micro_batch"] <= largest
    assert all(batch % size for size in range(derived["micro_batch"] + 1, min(batch, largest) + 1))


def test_without_a_limit_the_batch_goes_in_one_piece() -> None:
    assert derive({"batch_size": 96}) == {"loss_scale": "auto", "micro_batch": 96, "accumulation": 1}
    assert largest_divisor(97, 64) == 1
