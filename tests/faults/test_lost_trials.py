"""What is lost is tried once more, the baseline until it has an end."""

from __future__ import annotations

from tests.tuner.support import job, memory
from tuner.records import Outcome
from tuner.search import Search


def test_a_baseline_that_is_lost_again_and_again_still_comes_to_an_end() -> None:
    search = Search(job(budget={"trials": 3}), "job", memory())
    search.resume()
    for number in range(4):
        baseline = search.ask()
        assert (baseline.is_baseline, baseline.retry_of) == (True, number - 1 if number else None)
        search.lose(baseline.number, 0.0)

    baseline = search.ask()
    search.tell(baseline.number, Outcome.OK, 1.0, full_runs=1.0, device_seconds=1.0)

    assert baseline.is_baseline
    assert not search.ask().is_baseline


def test_any_other_configuration_is_tried_once_more_only() -> None:
    search = Search(job(budget={"trials": 3}), "job", memory())
    search.resume()
    search.tell(search.ask().number, Outcome.OK, 1.0, full_runs=1.0, device_seconds=1.0)
    first = search.ask()
    search.lose(first.number, 0.0)
    second = search.ask()
    search.lose(second.number, 0.0)

    assert second.retry_of == first.number
    assert search.ask().retry_of is None
