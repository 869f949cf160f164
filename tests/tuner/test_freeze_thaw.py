"""Our search, pure: its rungs, its promotions, its scores, its state; and that it beats random search."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from bench.replay import MARKS, load, main, replay
from bench.replay_methods import METHODS, Pool, Task
from tuner.freeze_thaw import FIRST, KEPT, RUNGS, FreezeThaw

COUNT, STEPS = 300, 50


def bowl(seed: int = 0) -> Task:
    """Curves that fall to a bowl's value at a pace of their own: early ranks mislead a little."""
    rng = np.random.default_rng(seed)
    unit = rng.random((COUNT, 3))
    last = ((unit - 0.3) ** 2).sum(1)
    pace = rng.uniform(2, 10, COUNT)
    steps = np.arange(1, STEPS + 1)
    curves = last[:, None] + np.exp(-steps[None, :] / pace[:, None])
    lengths = np.full(COUNT, STEPS, dtype=np.int64)
    return Task("bowl", "made", float(curves[:, -1].min()), float(np.median(curves[:, -1])), unit, curves, lengths)


def play(search: FreezeThaw, count: int, task: Task) -> list[tuple[str, Any, float]]:
    """Let one slot work for `count` decisions; what was decided."""
    found: list[tuple[str, Any, float]] = []
    for _ in range(count):
        step = search.propose()
        assert step is not None
        found.append((step.kind, step.key, step.fraction))
        search.observe(step.trial, float(task.curves[step.key, math.ceil(step.fraction * STEPS) - 1]))
    return found


def test_the_same_seed_decides_the_same_and_another_does_not() -> None:
    task = bowl()
    runs = [play(FreezeThaw(Pool(task.unit), seed), 60, task) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_trial_goes_from_rung_to_rung_and_no_configuration_is_started_twice() -> None:
    task = bowl()
    search = FreezeThaw(Pool(task.unit), 3)
    decided = play(search, 200, task)
    started = [key for kind, key, _ in decided if kind == "start"]
    assert len(set(started)) == len(started)
    for key in started:
        reached = [fraction for _, other, fraction in decided if other == key]
        assert reached == list(RUNGS[: len(reached)])
    assert max(trial.rung for trial in search.trials) >= 4


def test_only_the_best_of_a_rung_go_on() -> None:
    task = bowl()
    search = FreezeThaw(Pool(task.unit), 4)
    play(search, 150, task)
    for rung in range(len(RUNGS) - 1):
        there = [trial for trial in search.trials if trial.rung >= rung]
        further = sum(trial.rung > rung for trial in there)
        # Who was among the best when it went on may not be any more: trials that came later have pushed it down.
        assert further <= max(1, len(there) * KEPT * 1.5), rung


def test_scores_at_one_rung_are_normal_scores_and_are_dealt_out_anew_at_the_next() -> None:
    search = FreezeThaw(Pool(bowl().unit), 0)
    for value in (3.0, 1.0, 2.0):
        step = search._start()
        assert step is not None
        search.observe(step.number, value)
    first = search._scores()
    assert first[1] < first[2] < first[0]
    assert first[2] == pytest.approx(0.0)
    search.observe(1, 9.0)
    search.observe(2, 1.0)
    second = search._scores()
    assert (second[2], second[1], second[0]) == (first[1], first[2], first[0])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trial_that_diverged_is_the_worst_and_is_not_taken_up_again(value: float) -> None:
    task = bowl()
    search = FreezeThaw(Pool(task.unit), 5)
    step = search.propose()
    assert step is not None
    assert search.observe(step.trial, value) == "stop"
    play(search, 60, task)
    assert search.trials[step.trial].rung == 0
    assert search.recommend() != step.trial


def test_many_slots_get_work_of_their_own() -> None:
    search = FreezeThaw(Pool(bowl().unit), 6)
    steps = [search.propose() for _ in range(16)]
    assert len({step.key for step in steps if step}) == 16


def test_the_state_goes_through_json_in_the_middle() -> None:
    task = bowl()
    whole, half = FreezeThaw(Pool(task.unit), 7), FreezeThaw(Pool(task.unit), 7)
    decided = play(whole, 2 * FIRST, task)
    assert play(half, 2 * FIRST, task) == decided
    again = FreezeThaw.from_json(Pool(task.unit), json.loads(json.dumps(half.to_json())))
    assert again.recommend() == whole.recommend()
    assert play(again, 40, task) == play(whole, 40, task)


def test_a_pool_that_is_used_up_ends_the_search() -> None:
    task = bowl()
    small = Task(task.name, task.family, 0.0, 1.0, task.unit[:5], task.curves[:5], task.lengths[:5])
    search = FreezeThaw(Pool(small.unit), 8)
    play(search, 5 * len(RUNGS), small)
    assert search.propose() is None
    assert all(trial.is_over for trial in search.trials)


@pytest.mark.parametrize("workers", [1, 8])
def test_after_five_full_runs_it_recommends_far_better_than_random_search(workers: int) -> None:
    task, at = bowl(), MARKS.index(5.0)
    ours, others = ([replay(task, name, seed, workers).regrets[at] for seed in range(2)] for name in ("x5", "random"))
    assert np.mean(ours) < np.mean(others) / 2


@pytest.mark.parametrize("name", METHODS)
def test_every_method_plays_a_table_from_a_file(name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task = bowl()
    meta = {
        **{"name": "bowl", "family": "made", "best": task.best, "median": task.median},
        **{"param_names": ["a", "b", "c"], "param_scales": ["linear"] * 3},
    }
    np.savez(tmp_path / "bowl.npz", meta=json.dumps(meta), params=task.unit[:60], curves=task.curves[:60])
    run = replay(load(tmp_path / "bowl.npz"), name, 0, 1)
    assert len(run.regrets) == len(MARKS)
    assert all(math.isfinite(regret) for regret in run.regrets)


def test_an_unknown_method_and_an_empty_folder_are_named(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["replay", "--tables", str(tmp_path), "--methods", "magic"])
    with pytest.raises(SystemExit):
        main()
    assert "magic" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["replay", "--tables", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert str(tmp_path) in capsys.readouterr().err
