"""Our search, pure: its rungs, its promotions, its scores, its state; and that it beats random search."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from bench.replay import MARKS, load, main, replay
from bench.replay_methods import METHODS, Task
from tuner.chain_scores import FAR, Standings
from tuner.freeze_thaw import EARLY_KEPT, FIRST, GLIMPSE, KEPT, RUNGS, FreezeThaw, Step, report_rungs
from tuner.unit_space import Listed

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


def play(search: FreezeThaw, count: int, task: Task, may_start: bool = True) -> list[tuple[str, Any, float]]:
    """Let one slot work for up to `count` steps; what was decided."""
    found: list[tuple[str, Any, float]] = []
    goes_on: int | None = None
    while len(found) < count:
        if goes_on is not None:
            trial = search.trials[goes_on]
            step = Step(trial.number, trial.key, "resume", trial.rung + 1, RUNGS[trial.rung + 1])
        elif (proposed := search.propose(may_start)) is not None:
            step = proposed
        else:
            break
        found.append((step.kind, step.key, step.fraction))
        value = float(task.curves[step.key, math.ceil(step.fraction * STEPS) - 1])
        goes_on = step.trial if search.observe(step.trial, value, may_start) == "continue" else None
    return found


def test_the_same_seed_decides_the_same_and_another_does_not() -> None:
    task = bowl()
    runs = [play(FreezeThaw(Listed(task.unit), seed), 60, task) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_trial_goes_from_rung_to_rung_and_no_configuration_is_started_twice() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 3)
    decided = play(search, 200, task)
    started = [key for kind, key, _ in decided if kind == "start"]
    assert len(set(started)) == len(started)
    for key in started:
        reached = [fraction for _, other, fraction in decided if other == key]
        assert reached == list(RUNGS[: len(reached)])
    assert max(trial.rung for trial in search.trials) >= 4


def test_only_the_best_of_a_rung_go_on() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 4)
    play(search, 150, task)
    for rung in range(len(RUNGS) - 1):
        there = [trial for trial in search.trials if trial.rung >= rung]
        further = sum(trial.rung > rung for trial in there)
        # Who was among the best when it went on may not be any more: trials that came later have pushed it down.
        share = 1.5 * KEPT if RUNGS[rung] >= GLIMPSE else 1.1 * EARLY_KEPT
        assert further <= max(1, len(there) * share), rung


def test_scores_at_one_rung_are_normal_scores_and_are_dealt_out_anew_at_the_next() -> None:
    search = FreezeThaw(Listed(bowl().unit), 0)
    for value in (3.0, 1.0, 2.0):
        step = search._start()
        assert step is not None
        search.observe(step.number, value)
    first = search._standings.scores()
    assert first[1] < first[2] < first[0]
    assert first[2] == pytest.approx(0.0)
    search.observe(1, 9.0)
    search.observe(2, 1.0)
    second = search._standings.scores()
    assert (second[2], second[1], second[0]) == (first[1], first[2], first[0])


def test_equal_values_share_a_score_whichever_came_first() -> None:
    standings = Standings(2)
    for number, value in enumerate((1.0, math.inf, 0.5, math.inf, 1.0)):
        standings.add(number, 0, value)
    scores = standings.scores()
    assert scores[2] < scores[0] == scores[4] < scores[1] == scores[3]
    standings.add(0, 1, 2.0)
    standings.add(2, 1, 2.0)
    assert standings.scores()[0] == standings.scores()[2] == pytest.approx((scores[0] + scores[2]) / 2)


def test_regrets_are_in_units_of_the_medians_and_the_median_of_those_that_went_on_keeps_its_own() -> None:
    standings = Standings(2)
    for number, value in enumerate((1.0, 2.0, 3.0, 5.0, math.inf)):
        standings.add(number, 0, value)
    assert standings.regrets() == pytest.approx({0: 0.0, 1: 2 / 3, 2: 4 / 3, 3: 8 / 3, 4: FAR})
    for number, value in ((0, 0.7), (1, 0.6), (2, 0.8)):
        standings.add(number, 1, value)
    assert standings.regrets() == pytest.approx({1: 0.0, 0: 2 / 3, 2: 4 / 3, 3: 8 / 3, 4: FAR})


@pytest.mark.parametrize("values", [(math.inf, math.inf), (1.0, 1.0)])
def test_equal_values_have_no_regret(values: tuple[float, float]) -> None:
    standings = Standings(1)
    for number, value in enumerate(values):
        standings.add(number, 0, value)
    assert standings.regrets() == {0: 0.0, 1: 0.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_trial_that_diverged_is_the_worst_and_is_not_taken_up_again(value: float) -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 5)
    step = search.propose()
    assert step is not None
    assert search.observe(step.trial, value) == "stop"
    play(search, 60, task)
    assert search.trials[step.trial].rung == 0
    assert search.recommend() != step.trial


def test_many_slots_get_work_of_their_own() -> None:
    search = FreezeThaw(Listed(bowl().unit), 6)
    steps = [search.propose() for _ in range(16)]
    assert len({step.key for step in steps if step}) == 16


def test_the_state_goes_through_json_in_the_middle() -> None:
    task = bowl()
    whole, half = FreezeThaw(Listed(task.unit), 7), FreezeThaw(Listed(task.unit), 7)
    decided = play(whole, 2 * FIRST, task)
    assert play(half, 2 * FIRST, task) == decided
    again = FreezeThaw.from_json(Listed(task.unit), json.loads(json.dumps(half.to_json())))
    assert again.recommend() == whole.recommend()
    assert play(again, 40, task) == play(whole, 40, task)


def test_a_pool_that_is_used_up_ends_the_search() -> None:
    task = bowl()
    small = Task(task.name, task.family, 0.0, 1.0, task.unit[:5], task.curves[:5], task.lengths[:5])
    search = FreezeThaw(Listed(small.unit), 8)
    play(search, 5 * len(RUNGS) + 1, small)
    assert search.propose() is None
    assert all(trial.is_over for trial in search.trials)


def test_the_baseline_is_the_first_and_runs_to_its_end_without_a_pause() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 9)
    search.add(17, runs_to_end=True)
    decided = play(search, 60, task)
    assert [key for _, key, _ in decided[: len(RUNGS)]] == [17] * len(RUNGS)
    assert all(key != 17 for _, key, _ in decided[len(RUNGS) :])
    assert search.ranking(60)[0] != 0, "the depth of the baseline, which was given to it, is no merit"


def test_once_none_may_start_promotions_go_on_until_one_is_at_its_end() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 10)
    play(search, 30, task)
    started, paused = len(search.trials), sum(trial.is_free for trial in search.trials)
    decided = play(search, 1000, task, may_start=False)
    assert 0 < len(decided) < 60
    assert len(search.trials) == started
    assert [trial.number for trial in search.trials if trial.rung == len(RUNGS) - 1]
    assert paused / 2 < sum(trial.is_free for trial in search.trials) < paused


def test_a_trial_that_would_be_taken_up_at_once_goes_on_instead_of_pausing() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 11)
    for _ in range(200):
        step = search.propose()
        assert step is not None
        verdict = search.observe(step.trial, float(task.curves[step.key, math.ceil(step.fraction * STEPS) - 1]))
        if verdict == "pause":
            following = search._promotable(True)
            assert following is None or following.number != step.trial
        while verdict == "continue":
            trial = search.trials[step.trial]
            assert trial.is_running
            at = math.ceil(RUNGS[trial.rung + 1] * STEPS) - 1
            verdict = search.observe(step.trial, float(task.curves[step.key, at]))


def test_where_nothing_can_pause_the_worst_are_stopped_and_few_of_them_early() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 12, can_pause=False)
    play(search, 300, task)
    assert all(trial.is_over or trial.is_running for trial in search.trials)
    assert all(trial.rung >= 1 for trial in search.trials if trial.is_over), "nothing is stopped at the glimpse"
    at_first = sum(trial.rung >= 2 for trial in search.trials) / len(search.trials)
    assert 0.6 < at_first < 0.95
    assert sum(trial.rung == len(RUNGS) - 1 for trial in search.trials) < len(search.trials) / 3


def test_what_is_removed_is_forgotten_and_what_is_closed_still_counts() -> None:
    task = bowl()
    search = FreezeThaw(Listed(task.unit), 13)
    play(search, 30, task)
    best, other = search.ranking(2)
    search.remove(best)
    search.close(other)
    ranked = search.ranking(len(search.trials))
    assert (best in ranked, other in ranked) == (False, True)
    taken_up = {key for kind, key, _ in play(search, 60, task) if kind == "resume"}
    assert not taken_up & {search.trials[best].key, search.trials[other].key}


def test_a_search_is_built_anew_from_the_values_of_its_trials() -> None:
    task = bowl()
    search, again = FreezeThaw(Listed(task.unit), 14), FreezeThaw(Listed(task.unit), 14)
    play(search, 80, task)
    for trial in search.trials:
        again.add(trial.key, values=trial.values, is_over=trial.is_over)
    assert again.ranking(3)[0] in search.ranking(3)
    keys = {trial.key for trial in search.trials}
    assert all(key not in keys for kind, key, _ in play(again, 40, task) if kind == "start")


@pytest.mark.parametrize(
    ("reports", "rungs"),
    [(1, (1,)), (4, (1, 2, 3, 4)), (20, (1, 2, 3, 4, 6, 9, 14, 20)), (100, (3, 6, 9, 13, 20, 30, 45, 67, 100))],
)
def test_rungs_are_reports_each_once_and_the_last_is_the_end(reports: int, rungs: tuple[int, ...]) -> None:
    assert report_rungs(reports) == rungs


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
