"""What is lost is tried once more, the baseline until it has an end."""

from __future__ import annotations

import psutil

from tests.tuner.support import job, memory, probe_config, probe_host, slot_setup
from tuner.assignment import Assignment
from tuner.records import Outcome
from tuner.search import Search
from tuner.slot import SlotRun


def test_a_warm_parent_that_is_killed_while_it_loads_is_a_lost_run_and_no_broken_workload() -> None:
    with probe_host(at_start="\nimport time; time.sleep(3600)\n") as host:
        run = SlotRun(host, slot_setup(), Assignment("t0", probe_config()))
        assert run.step().end is None
        psutil.Process(host.warm_pid).kill()
        report = run.step()

    assert report.end is not None
    assert report.end.outcome == Outcome.LOST
    assert "the warm parent ended" in (report.end.reason or "")


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
