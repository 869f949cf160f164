"""Training seeds."""

from __future__ import annotations

import pytest

from tuner.seeds import fresh_seeds, trial_seed


@pytest.mark.parametrize("job_seed", [0, 7, 2**32 - 1])
def test_confirmation_trains_on_seeds_that_the_search_has_not_seen(job_seed: int) -> None:
    seeds = fresh_seeds(job_seed, 64)

    assert len({*seeds, trial_seed(job_seed)}) == 65
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_seeds_depend_on_nothing_but_the_job_seed() -> None:
    assert (trial_seed(7), fresh_seeds(7, 2)) == (299720763, [2609535733, 323495978])
    assert trial_seed(8) != trial_seed(7)


def test_going_on_to_more_seeds_keeps_the_first_ones() -> None:
    assert fresh_seeds(7, 8)[:5] == fresh_seeds(7, 5)
