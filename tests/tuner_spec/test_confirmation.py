"""Which finalists are proven better than the baseline."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.confirmation import (
    Judgement,
    Scores,
    holm_levels,
    judge,
    needs_more,
    paired_t_test,
    rank,
    sign_test,
    undecided,
)

BASELINE: Scores = {1: 1.0, 2: 1.1, 3: 0.9, 4: 1.05, 5: 0.95}
NOISE = (0.010, -0.013, 0.004, -0.008, 0.011)


def better_by(amount: float, baseline: Scores = BASELINE) -> dict[int, float | None]:
    """A finalist that beats the baseline (lower is better) by about `amount` on every seed."""
    return {
        seed: value - amount + noise
        for (seed, value), noise in zip(baseline.items(), NOISE, strict=True)
        if value is not None
    }


def only(scores: Scores, baseline: Scores = BASELINE, look: int = 1) -> Judgement:
    return judge(baseline, {7: scores}, "minimize", look)[7]


def test_a_clear_improvement_is_proven_with_an_interval_above_zero() -> None:
    judgement = only(better_by(0.2))

    assert judgement.status == "proven"
    assert judgement.difference == pytest.approx(0.2, abs=0.01)
    assert judgement.interval is not None
    assert 0 < judgement.interval[0] < 0.2 < judgement.interval[1]
    assert (judgement.seeds, judgement.confidence, judgement.test) == (5, 0.95, "paired t")
    assert judgement.baseline_mean == pytest.approx(1.0)


def test_the_difference_is_positive_when_better_whatever_the_direction() -> None:
    higher = {seed: value + 0.2 for seed, value in BASELINE.items() if value is not None}

    assert judge(BASELINE, {1: higher}, "maximize", 1)[1].status == "proven"
    assert judge(BASELINE, {1: higher}, "minimize", 1)[1].difference == pytest.approx(-0.2)


def test_an_improvement_within_the_noise_is_undecided_and_worth_more_seeds() -> None:
    judgements = judge(BASELINE, {7: better_by(0.003), 8: better_by(-0.3)}, "minimize", 1)

    assert [judgement.status for judgement in judgements.values()] == ["undecided", "not_better"]
    assert needs_more(judgements)
    assert undecided(judgements) == [7]


def test_nothing_more_is_needed_when_all_are_proven_or_not_better() -> None:
    assert not needs_more(judge(BASELINE, {7: better_by(0.3), 8: better_by(-0.3)}, "minimize", 1))


def test_only_seeds_that_both_have_run_count() -> None:
    longer = {**BASELINE, 6: 100.0, 7: 100.0, 8: 100.0}

    assert only(better_by(0.2), longer, look=2) == only(better_by(0.2), look=2)


def test_what_was_proven_with_the_same_seeds_stays_proven_at_the_second_look() -> None:
    fresh = {6: 1.0, 7: 1.1, 8: 0.9}
    undecided_before: dict[int, float | None] = better_by(0.005)
    first = judge(BASELINE, {1: better_by(0.2), 2: undecided_before}, "minimize", 1)

    more = {**undecided_before, 6: 0.8, 7: 0.9, 8: 0.7}
    second = judge({**BASELINE, **fresh}, {1: better_by(0.2), 2: more}, "minimize", 2)

    assert first[1].status == second[1].status == "proven"
    assert (second[1].seeds, second[2].seeds) == (5, 8)


def test_equal_runs_are_not_better() -> None:
    judgement = only(BASELINE)

    assert (judgement.status, judgement.difference, judgement.interval) == ("not_better", 0.0, (0.0, 0.0))


def test_equal_differences_are_proven_by_their_sign() -> None:
    judgement = only(dict.fromkeys(BASELINE, 1.5), dict.fromkeys(BASELINE, 2.0))

    assert (judgement.status, judgement.interval) == ("proven", (0.5, 0.5))
    assert (judgement.test, judgement.confidence) == ("equal differences", None)


def test_a_failed_run_switches_to_the_sign_test_and_counts_against_the_finalist() -> None:
    judgement = only({**better_by(0.2), 3: None})

    assert (judgement.test, judgement.difference, judgement.interval) == ("sign", None, None)
    assert judgement.p_value == sign_test(4, 5) == 6 / 32
    assert (judgement.status, judgement.failures) == ("undecided", 1)


@pytest.mark.parametrize("failed", [None, math.nan, math.inf, -math.inf])
def test_both_failed_is_a_tie_that_counts_against(failed: float | None) -> None:
    judgement = only({**better_by(0.2), 1: failed}, {**BASELINE, 1: failed})

    assert judgement.p_value == sign_test(4, 5)


def test_a_baseline_that_always_fails_is_beaten_by_eight_good_runs() -> None:
    baseline = dict.fromkeys(range(8), None)
    finalist = dict.fromkeys(range(8), 0.5)

    judgement = judge(baseline, {1: finalist}, "minimize", 2)[1]

    assert judgement.status == "proven"
    assert (judgement.mean, judgement.baseline_mean) == (0.5, None)


def test_numbers_too_far_apart_to_subtract_are_compared_by_sign() -> None:
    judgement = only({1: 1.7e308, 2: 1.7e308}, {1: -1.7e308, 2: -1.7e308})

    assert (judgement.test, judgement.status, judgement.p_value) == ("sign", "not_better", 1.0)


def test_one_pair_proves_nothing_and_no_pair_decides_nothing() -> None:
    assert only({1: 0.1}).status == "undecided"
    assert only({1: 0.1}).interval is None
    assert only({}).status == "undecided"
    assert only({}).difference is None


def test_no_finalists_is_no_judgement() -> None:
    assert judge(BASELINE, {}, "minimize", 1) == {}
    assert not needs_more({})


def test_holm_gives_the_smallest_p_value_the_strictest_level() -> None:
    assert holm_levels([0.02, 0.001, 0.011], 0.03) == pytest.approx([0.03, 0.01, 0.015])


def test_holm_keeps_the_level_of_the_first_step_that_fails() -> None:
    assert holm_levels([0.001, 0.5, 0.02], 0.03) == pytest.approx([0.01, 0.015, 0.015])


@pytest.mark.parametrize("look", [0, 3])
def test_there_are_two_looks(look: int) -> None:
    with pytest.raises(ValueError, match="look"):
        judge(BASELINE, {}, "minimize", look)


def test_ranking_puts_proven_first_and_larger_differences_before_smaller() -> None:
    finalists = {
        1: better_by(0.001),
        2: better_by(0.2),
        3: better_by(-0.1),
        4: better_by(0.3),
        5: {**better_by(1), 1: None},
    }

    assert rank(judge(BASELINE, finalists, "minimize", 1)) == [4, 2, 1, 5, 3]


differences = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 6)), min_size=2, max_size=12)


@settings(deadline=None)
@given(differences.filter(lambda values: max(values) - min(values) > 1e-6 * max(map(abs, values))))
def test_the_t_test_agrees_with_scipy(values: list[float]) -> None:
    stats = pytest.importorskip("scipy.stats")

    expected = stats.ttest_rel(values, [0.0] * len(values), alternative="greater").pvalue

    assert paired_t_test(values) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(0, 64))
def test_the_sign_test_agrees_with_scipy(pairs: int, wins: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    wins = min(wins, pairs)

    assert sign_test(wins, pairs) == pytest.approx(stats.binomtest(wins, pairs, alternative="greater").pvalue)


scores = st.dictionaries(st.integers(1, 8), st.floats(-1e300, 1e300) | st.sampled_from([0.0, 0.5, 1.0]), min_size=8)


@settings(deadline=None)
@given(scores, st.dictionaries(st.integers(0, 4), scores, max_size=5), st.sampled_from([1, 2]))
def test_an_interval_lies_above_zero_exactly_for_what_is_proven(
    baseline: Scores, finalists: dict[int, Scores], look: int
) -> None:
    for judgement in judge(baseline, finalists, "maximize", look).values():
        if judgement.interval is not None and abs(judgement.p_value - judgement.level) > 1e-9:
            assert (judgement.interval[0] > 0) == (judgement.status == "proven")


values = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1.0]))


@settings(deadline=None)
@given(
    st.dictionaries(st.integers(1, 8), values),
    st.dictionaries(st.integers(0, 3), st.dictionaries(st.integers(1, 8), values)),
)
def test_any_values_are_judged_with_finite_numbers(baseline: Scores, finalists: dict[int, Scores]) -> None:
    judgements = judge(baseline, finalists, "minimize", 1)

    assert set(judgements) == set(finalists) == set(rank(judgements))
    for judgement in judgements.values():
        numbers = [judgement.p_value, judgement.mean, judgement.baseline_mean, judgement.difference]
        assert all(math.isfinite(number) for number in [*numbers, *(judgement.interval or ())] if number is not None)


def family_errors(jobs: int, finalists: int, failure: float, seed: int) -> float:
    """The fraction of simulated jobs that prove something, when no finalist differs from the baseline."""
    draw = random.Random(seed)

    def runs(count: int) -> list[float | None]:
        return [None if draw.random() < failure else draw.gauss(0, 1) for _ in range(count)]

    errors = 0
    for _ in range(jobs):
        baseline = dict(enumerate(runs(8)))
        trials = {trial: dict(enumerate(runs(8))) for trial in range(finalists)}
        first = judge(
            {s: baseline[s] for s in range(5)},
            {t: {s: v[s] for s in range(5)} for t, v in trials.items()},
            "minimize",
            1,
        )
        goes_on = set(undecided(first))
        second = judge(
            baseline,
            {t: v if t in goes_on else {s: v[s] for s in range(5)} for t, v in trials.items()},
            "minimize",
            2,
        )
        errors += any(j.status == "proven" for j in (*first.values(), *second.values()))
    return errors / jobs


@pytest.mark.parametrize(("finalists", "failure"), [(1, 0.0), (3, 0.0), (3, 0.1)])
def test_a_job_without_any_better_finalist_proves_one_in_at_most_five_percent(finalists: int, failure: float) -> None:
    jobs = 2000
    margin = 3 * math.sqrt(0.05 * 0.95 / jobs)

    assert family_errors(jobs, finalists, failure, seed=1) <= 0.05 + margin
