"""Which batch sizes cannot be made from what fits, why, and what is searched instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.tuner.support import RecordingObserver, coordinate, memory
from tests.tuner.test_fit_phase import job, play
from tuner.jobspec import Choices, Fixed, Range
from tuner.left_out import Cut, left_out, without
from tuner.records import StopReason


def gone(entries: list[dict[str, Any]]) -> list[Any]:
    return [entry["batch_size"] for entry in entries]


def batches(*sizes: int, most: int | None = None, **spec: Any) -> Any:
    limits = {"host_memory_mib": 100, "max_accumulation": most}
    return job(search={"batch_size": {"choices": list(sizes)}}, limits=limits, **spec)


def test_a_batch_that_divides_into_what_fits_stays() -> None:
    assert left_out(batches(16, 48, 512), Cut(16)) == []


def test_the_nearest_divisor_below_what_fits_decides_how_many_pieces_it_takes() -> None:
    a_job = batches(96, 97, 100, most=8, baseline={"batch_size": 96})

    entries = left_out(a_job, Cut(16))

    assert gone(entries) == [97, 100]
    assert "1 is the largest that divides 97" in entries[0]["reason"]
    assert "10 is the largest that divides 100: that takes an accumulation of 10" in entries[1]["reason"]


def test_of_several_processes_the_share_of_one_counts() -> None:
    a_job = batches(64, 128, baseline={"batch_size": 64}, resources={"processes": 2, "cpus": 2})

    entries = left_out(a_job, Cut(32, can_cut=False))

    assert gone(entries) == [128]
    assert "128, 64 a process, goes in one piece, and 32 is the largest" in entries[0]["reason"]


def test_of_a_range_that_cannot_be_cut_the_upper_part_goes() -> None:
    a_job = job(search={"batch_size": {"low": 8, "high": 512, "int": True, "log": True}})

    entries = left_out(a_job, Cut(100, can_cut=False))
    left = without(a_job, entries)

    assert gone(entries) == [{"low": 101, "high": 512}]
    assert left is not None and isinstance(left.space["batch_size"], Range)
    assert (left.space["batch_size"].low, left.space["batch_size"].high) == (8, 100)
    assert left_out(a_job, Cut(100)) == []


@pytest.mark.parametrize(("asked", "starts_with"), [(64, 64), (128, 64), (97, 96)])
def test_a_baseline_that_cannot_be_made_starts_with_the_nearest_below(asked: int, starts_with: int) -> None:
    a_job = batches(64, 96, 97, 128, baseline={"batch_size": asked})
    entries = [{"batch_size": 97, "reason": ""}, {"batch_size": 128, "reason": ""}]
    if asked == 128:
        entries.append({"batch_size": 96, "reason": ""})

    left = without(a_job, entries)

    assert left is not None
    assert left.baseline == {**a_job.baseline, "batch_size": starts_with}
    assert without(left, entries) == left, "once more changes nothing"


def test_a_baseline_below_everything_that_is_left_starts_with_the_smallest() -> None:
    left = without(batches(61, 64, 128, baseline={"batch_size": 61}), [{"batch_size": 61, "reason": ""}])

    assert left is not None
    assert (left.space["batch_size"], left.baseline["batch_size"]) == (Choices((64, 128)), 64)


def test_nothing_is_left_of_a_fixed_batch_that_cannot_be_made() -> None:
    a_job = job(search={"batch_size": 97})
    assert a_job.space["batch_size"] == Fixed(97)
    assert without(a_job, [{"batch_size": 97, "reason": ""}]) is None


@pytest.mark.parametrize("sampler", ["auto", "random", "tpe", "gp", "grid"])
def test_no_sampler_proposes_what_was_left_out(sampler: str) -> None:
    search = {"batch_size": {"choices": [32, 61, 64, 67]}, "lr": {"choices": [0.01, 0.1]}, "weight_decay": 0.0}
    limits = {"host_memory_mib": 100, "max_accumulation": 4}
    spec: dict[str, Any] = {"search": search, "baseline": {"batch_size": 67, "lr": 0.01}, "budget": {"trials": 12}}
    coordinator, observer = coordinate(job(**spec, limits=limits, sampler=sampler))

    play(coordinator, lambda size: 20 + 2 * size)

    assert gone(observer.fits[-1]["left_out"]) == [61, 67]
    tried = [(started.parameters["batch_size"], started.parameters["lr"]) for started in observer.started]
    assert sorted(tried) == [(32, 0.01), (32, 0.1), (64, 0.01), (64, 0.1)], "the space has four left"
    assert tried[0] == (64, 0.01), "the baseline asked for 67"
    result = coordinator.result()
    assert result.stop_reason == StopReason.SPACE_EXHAUSTED
    assert "61 (of the micro-batches up to 32" in result.diagnosis[-1].message
    assert "the baseline ran with a batch size of 64 instead of 67" in result.diagnosis[-1].message


def test_another_attempt_leaves_out_the_same_and_says_so() -> None:
    storage, first = memory(), RecordingObserver()
    a_job = batches(32, 61, 64, most=4, baseline={"batch_size": 61}, budget={"trials": 4})
    coordinator, _ = coordinate(a_job, storage, observer=first)
    play(coordinator, lambda size: 20 + 2 * size, runs=7)
    stored = json.loads(json.dumps(first.fits[-1]))

    again, observer = coordinate(first.decided[-1], storage, fit=stored)
    play(again, lambda size: 20 + 2 * size)

    tried = {started.parameters["batch_size"] for started in (*first.started, *observer.started)}
    assert tried <= {32, 64}
    assert "the baseline ran with a batch size of 32 instead of 61" in again.result().diagnosis[-1].message


def test_where_no_batch_can_be_made_nothing_runs_and_the_reason_is_told() -> None:
    a_job = batches(61, 67, most=4, baseline={"batch_size": 61})
    coordinator, observer = coordinate(a_job)

    play(coordinator, lambda size: 20 + 2 * size)

    result = coordinator.result()
    assert observer.started == []
    assert (result.stop_reason, result.verdict) == (StopReason.SPACE_EXHAUSTED, "no_recommendation")
    assert "None of the batch sizes can be made" in result.diagnosis[0].message
