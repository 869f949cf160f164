"""A search that starts from earlier jobs, and one that has nothing left to gain. No processes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.tuner.support import RecordingObserver, ScriptedSlots, coordinate, job, long_bowl, memory
from tuner.earlier_jobs import EarlierJob, EarlierTrial, Learnt, learn
from tuner.jobspec import ResolvedJob
from tuner.own_policy import LEFT_ASIDE
from tuner.records import StopReason

TRIALS = 30


def own(seed: int, trials: int = TRIALS) -> ResolvedJob:
    search = {"lr": {"low": 1e-5, "high": 10.0, "log": True}, "batch_size": {"choices": [16, 32, 64]}}
    return job(pruner="auto", budget={"trials": trials}, seed=seed, search=search)


def played(folder: Path, one: ResolvedJob, learnt: Learnt | None = None) -> tuple[ScriptedSlots, RecordingObserver]:
    coordinator, observer = coordinate(one, memory(), checkpoints=folder, learnt=learnt)
    slots = ScriptedSlots(coordinator, curve=long_bowl)
    slots.play()
    return slots, observer


def as_earlier(one: ResolvedJob, observer: RecordingObserver) -> EarlierJob:
    outcomes = {ended.number: ended.outcome for ended in observer.ended}
    trials = [
        EarlierTrial(
            started.parameters,
            outcomes[started.number],
            [(point.index / 20, point.value.number) for number, point in observer.points if number == started.number],
        )
        for started in observer.started
    ]
    return EarlierJob("first", one, trials)


def reaches(observer: RecordingObserver, target: float) -> float:
    """The full runs after which a trial was started that is as good as `target` (the distance of its rate)."""
    good = {s.number for s in observer.started if abs(float(s.parameters["lr"]) - 0.01) <= target + 1e-12}
    return next(place for place, (number, _) in enumerate(observer.points) if number in good) / 20


def test_a_second_job_reaches_the_best_of_the_first_within_a_quarter_of_its_compute(tmp_path: Path) -> None:
    first_job = own(1)
    slots, first = played(tmp_path / "first", first_job)
    best = abs(float(slots.coordinator.result().recipes[0].parameters["lr"]) - 0.01)
    learnt = learn(own(2), [as_earlier(first_job, first)])
    assert learnt.history is not None

    _, second = played(tmp_path / "second", own(2), learnt)

    assert reaches(second, best) <= len(first.points) / 20 / 4


def test_a_job_says_that_it_leaves_earlier_jobs_on_other_work_aside_when_they_mislead(tmp_path: Path) -> None:
    first_job = own(1)
    _, first = played(tmp_path / "first", first_job)
    told = as_earlier(first_job, first)
    opposite = [replace(one, curve=[(at, -(value or 0.0)) for at, value in one.curve]) for one in told.trials]
    other = replace(first_job, workload="other")

    _, right = played(tmp_path / "right", own(2), learn(own(2), [replace(told, job=other)]))
    _, wrong = played(tmp_path / "wrong", own(2), learn(own(2), [replace(told, job=other, trials=opposite)]))

    assert not right.notes
    assert [text for _, text in wrong.notes] == [LEFT_ASIDE]


def test_no_configuration_is_tried_twice_although_history_points_to_one(tmp_path: Path) -> None:
    first_job = own(1)
    _, first = played(tmp_path / "first", first_job)
    _, second = played(tmp_path / "second", own(2), learn(own(2), [as_earlier(first_job, first)]))

    tried = [json.dumps(dict(one.parameters)) for one in second.started]
    assert len(set(tried)) == len(tried)


def test_a_search_ends_converged_when_more_would_gain_less_than_the_noise_between_seeds(tmp_path: Path) -> None:
    slots, observer = played(tmp_path, own(3, trials=400), Learnt(None, (), noise=100.0))

    assert slots.coordinator.result().stop_reason == StopReason.CONVERGED
    assert 16 <= len(observer.started) < 400
    assert slots.coordinator.result().recipes


def test_without_known_noise_a_search_goes_on_to_the_end_of_its_budget(tmp_path: Path) -> None:
    slots, observer = played(tmp_path, own(3, trials=60), Learnt(None, (), noise=None))

    assert slots.coordinator.result().stop_reason == StopReason.TRIALS
    assert len(observer.started) == 60
