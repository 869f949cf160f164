"""What earlier jobs say: how their scores are carried over, the portfolio, and how trust is earned and lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from bench.replay import MARKS, replay
from bench.replay_history import MODES, regrets, with_history
from bench.replay_methods import Task as Table
from tuner.freeze_thaw import RUNGS, FreezeThaw
from tuner.history import MOST, SIZE, History, Task
from tuner.jobspec import Parameter, Range
from tuner.opening import CLOSE, POOR, Opening
from tuner.unit_space import Listed, UnitSpace

COUNT, STEPS = 200, 30
POINTS = np.random.default_rng(0).random((COUNT, 2))


def bowl(bottom: tuple[float, float]) -> npt.NDArray[np.float64]:
    return np.asarray(((POINTS - bottom) ** 2).sum(1))


def task(bottom: tuple[float, float], points: npt.NDArray[np.intp] | None = None) -> Task:
    chosen = np.arange(COUNT) if points is None else points
    return Task(POINTS[chosen], regrets(bowl(bottom)[chosen]), np.full(len(chosen), 0.05))


def noise_task(seed: int) -> Task:
    return Task(POINTS, regrets(np.random.default_rng(seed).random(COUNT)), np.full(COUNT, 0.05))


def table(name: str, bottom: tuple[float, float]) -> Table:
    last = bowl(bottom)
    curves = last[:, None] + np.exp(-np.arange(1, STEPS + 1)[None, :] / 5)
    lengths = np.full(COUNT, STEPS, dtype=np.int64)
    return Table(name, "made", float(curves[:, -1].min()), float(np.median(curves[:, -1])), POINTS, curves, lengths)


def test_scores_are_carried_over_to_points_that_were_not_tried() -> None:
    half = np.arange(0, COUNT, 2)
    history = History([task((0.3, 0.6), half)])
    other = np.arange(1, COUNT, 2)
    said = history.features(POINTS[other])[:, 0]
    assert np.corrcoef(said, bowl((0.3, 0.6))[other])[0, 1] > 0.9


def test_a_point_that_was_tried_keeps_its_score_unless_it_is_not_to_be_recognised() -> None:
    odd = noise_task(1)
    assert np.array_equal(History([odd]).features(POINTS[:20])[:, 0], odd.scores[:20])
    assert not np.array_equal(History([odd], recognises=False).features(POINTS[:20])[:, 0], odd.scores[:20])


def test_the_portfolio_has_something_good_for_every_task() -> None:
    bottoms = ((0.1, 0.1), (0.5, 0.9), (0.9, 0.2))
    portfolio = History([task(bottom) for bottom in bottoms]).portfolio(POINTS)
    assert SIZE <= len(portfolio) <= MOST
    for bottom in bottoms:
        nearest = min(float(((point - bottom) ** 2).sum()) for point in portfolio)
        assert nearest < 0.02


def test_tasks_that_do_not_agree_are_not_believed_and_one_alone_is_for_a_start() -> None:
    assert not History([noise_task(seed) for seed in range(4)]).is_trusted
    assert History([task((0.3, 0.6)), task((0.35, 0.5))]).is_trusted
    assert History([task((0.3, 0.6))]).is_trusted


def test_weights_rise_for_a_task_that_is_right_and_fall_for_one_that_is_wrong() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))])
    scores, few = task((0.2, 0.2)).scores, np.arange(0, COUNT, 5)
    nothing = history.weights(POINTS[:0], scores[:0], scores[:0])[1:]
    right = history.weights(POINTS[few], scores[few], np.ones(len(few)))[1:]
    wrong = history.weights(POINTS[few], -scores[few], np.ones(len(few)))[1:]
    assert right[0] > nothing[0] > wrong[0]
    assert right[0] > right[1]
    assert wrong.sum() < 0.1


def test_scores_tell_the_first_few_of_a_thousand_apart() -> None:
    line = Task(np.zeros((1000, 1)), np.linspace(0, 2, 1000), np.ones(1000))
    scores = line.scores
    assert scores.mean() == pytest.approx(0)
    assert scores.std() == pytest.approx(1)
    assert scores[50] - scores[0] > 3 * (scores[600] - scores[550])
    assert line.regrets_of(scores) == pytest.approx(line.regrets, abs=1e-9)


def test_belief_is_lost_when_the_tasks_are_wrong_and_kept_when_one_is_right() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))])
    scores, few = task((0.2, 0.2)).scores, np.arange(0, COUNT, 5)
    assert history.belief(history.weights(POINTS[:0], scores[:0], scores[:0])) == 1
    assert history.belief(history.weights(POINTS[few], scores[few], np.ones(len(few)))) == 1
    assert history.belief(history.weights(POINTS[few], -scores[few], np.ones(len(few)))) == 0


def test_with_history_fewer_configurations_come_further() -> None:
    tables = [table(f"old{n}", bottom) for n, bottom in enumerate(((0.4, 0.5), (0.5, 0.5), (0.5, 0.6)))]
    now = table("now", (0.45, 0.55))
    ended = []
    for known in (now, with_history(now, tables, "identity", 0)):
        search = FreezeThaw(Listed(POINTS), 0, history=known.history)
        for _ in range(60):
            step = search.propose()
            assert step is not None
            while search.observe(step.trial, bowl((0.45, 0.55))[step.key]) == "continue":
                pass
        ended.append(sum(trial.is_over for trial in search.trials))
    assert ended[1] > ended[0]


def test_one_earlier_job_recommends_its_best_three() -> None:
    alone = task((0.3, 0.6))
    portfolio = History([alone]).portfolio(POINTS)
    assert np.array_equal(portfolio, POINTS[np.argsort(alone.regrets)[:SIZE]])


def test_jobs_that_differ_make_a_larger_portfolio() -> None:
    alike = [task((0.3, 0.6)), task((0.32, 0.58))]
    assert len(History(alike).portfolio(POINTS)) == SIZE
    corners = ((0.1, 0.1), (0.1, 0.9), (0.9, 0.1), (0.9, 0.9))
    assert len(History([task(corner) for corner in corners]).portfolio(POINTS)) > SIZE


def opened(history: History, value: Callable[[int], float]) -> FreezeThaw:
    """A search after nine looks at its opening, where a configuration has the same `value` at every rung."""
    search = FreezeThaw(Listed(POINTS), 1, history=history)
    for _ in range(9):
        step = search.propose()
        assert step is not None
        while search.observe(step.trial, value(step.key)) == "continue":
            pass
    return search


def test_a_search_opens_with_the_portfolio_and_a_glimpse_at_what_is_called_poor() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))])
    search = FreezeThaw(Listed(POINTS), 1, history=history)
    first = [step.key for _ in range(SIZE + len(POOR)) if (step := search.propose())]
    expected = history.features(POINTS).mean(axis=1)
    assert np.array_equal(POINTS[first[:SIZE]], history.portfolio(history.leaders))
    assert sorted((expected < expected[key]).mean() for key in first[SIZE:]) == pytest.approx(POOR, abs=0.01)


def test_the_portfolio_is_trained_side_by_side_until_it_can_be_told_apart() -> None:
    search = opened(History([task((0.2, 0.2)), task((0.3, 0.4))]), lambda key: float(bowl((0.2, 0.2))[key]))
    good, poor = search.trials[:SIZE], search.trials[SIZE : SIZE + len(POOR)]
    assert not search.doubts_history
    assert all(trial.rung == 0 for trial in poor)
    assert all(trial.values for trial in good)
    for _ in range(40):
        step = search.propose()
        assert step is not None
        if step.trial >= SIZE:
            break
        search.observe(step.trial, float(bowl((0.2, 0.2))[step.key]))
    assert all(RUNGS[trial.rung] >= CLOSE for trial in good)


def test_earlier_jobs_are_left_aside_when_what_they_call_poor_does_as_well() -> None:
    search = opened(History([task((0.2, 0.2)), task((0.3, 0.4))]), lambda key: -float(bowl((0.2, 0.2))[key]))
    assert search.doubts_history


def test_earlier_jobs_that_are_not_doubted_cost_no_glimpse_at_what_is_poor() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))], is_doubted=False)
    opening = Opening(history, Listed(POINTS))
    for number, point in enumerate(history.portfolio(history.leaders)):
        assert opening.next_point(with_poor=True) is not None
        opening.began(number, point)
    assert opening.next_point(with_poor=True) is None


def test_a_trial_of_the_opening_that_is_lost_does_not_hold_it_up() -> None:
    search = FreezeThaw(Listed(POINTS), 1, history=History([task((0.2, 0.2)), task((0.3, 0.4))]))
    steps = [step for _ in range(SIZE + len(POOR)) if (step := search.propose())]
    search.remove(steps[0].trial)
    verdicts = [search.observe(step.trial, float(bowl((0.2, 0.2))[step.key])) for step in steps[1:]]
    assert not search.doubts_history
    assert verdicts == ["continue"] * 2 + ["pause"] * len(POOR)


def test_a_search_that_is_taken_up_again_opens_as_it_did() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))])
    first = FreezeThaw(Listed(POINTS), 1, history=history)
    keys = [step.key for _ in range(SIZE + len(POOR)) if (step := first.propose())]
    again = FreezeThaw(Listed(POINTS), 7, history=history)
    for key in keys[:2]:
        again.add(key, values=[float(bowl((0.2, 0.2))[key])])
    others = [step.key for _ in keys[2:] if (step := again.propose())]
    assert others == keys[2:]


def test_a_search_that_is_taken_up_again_leaves_aside_what_it_had_left_aside() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))])
    first = opened(history, lambda key: -float(bowl((0.2, 0.2))[key]))
    assert first.doubts_history
    again = FreezeThaw(Listed(POINTS), 7, history=history)
    for trial in first.trials:
        again.add(trial.key, values=trial.values, is_over=trial.is_over)
    assert again.doubts_history


def test_the_baseline_runs_to_its_end_before_the_opening_goes_on() -> None:
    search = FreezeThaw(Listed(POINTS), 1, history=History([task((0.2, 0.2)), task((0.3, 0.4))]))
    baseline = search.add(7, runs_to_end=True)
    step = search.propose()
    assert step is not None
    assert step.trial == baseline
    assert [search.observe(baseline, 1.0) for _ in RUNGS] == ["continue"] * (len(RUNGS) - 1) + ["stop"]


def test_a_baseline_that_was_interrupted_goes_on_before_the_opening_does() -> None:
    search = FreezeThaw(Listed(POINTS), 1, history=History([task((0.2, 0.2)), task((0.3, 0.4))]))
    baseline = search.add(7, runs_to_end=True, values=[1.0])
    step = search.propose()
    assert step is not None
    assert (step.trial, step.kind) == (baseline, "resume")


def test_what_is_tried_once_more_because_it_was_lost_is_still_of_the_portfolio() -> None:
    history = History([task((0.2, 0.2)), task((0.3, 0.4))], is_doubted=False)
    search = FreezeThaw(Listed(POINTS), 1, history=history)
    lost, *others = [step for _ in range(SIZE) if (step := search.propose())]
    search.remove(lost.trial)
    again = search.add(lost.key)
    for step in others:
        search.remove(step.trial)
    step = search.propose()
    assert step is not None
    for rung in range(RUNGS.index(CLOSE) + 1):
        assert search.observe(again, 1.0) == ("continue" if RUNGS[rung] < CLOSE else "pause")


def test_what_the_portfolio_shares_with_the_baseline_is_not_tried_twice() -> None:
    rates: dict[str, Parameter] = {"lr": Range(1e-5, 1.0, log=True)}
    space = UnitSpace(rates)
    history = History([Task(np.array([[0.3], [0.6], [0.8]]), np.array([1.0, 0.0, 2.0]), np.full(3, 0.05))])
    search = FreezeThaw(space, 1, history=history)
    search.add(space.parameters(history.portfolio(history.leaders)[0]), runs_to_end=True)
    started = [step.key["lr"] for _ in range(SIZE) if (step := search.propose())]
    assert len({f"{rate:.6g}" for rate in started}) == SIZE


def regret(mode: str | None, at: float, seeds: int = 3) -> float:
    """Mean regret after `at` full runs on one bowl, with three similar ones before it."""
    now = table("now", (0.45, 0.55))
    others = [table(f"old{n}", bottom) for n, bottom in enumerate(((0.4, 0.5), (0.5, 0.5), (0.5, 0.6)))]
    found = []
    for seed in range(seeds):
        known = replace(now) if mode is None else with_history(now, others, mode, seed)
        found.append(replay(known, "x5", seed, 1).regrets[MARKS.index(at)])
    return float(np.mean(found))


@pytest.mark.parametrize("mode", MODES[:3])
def test_with_history_half_a_run_is_better_than_without(mode: str) -> None:
    assert regret(mode, 0.5) < regret(None, 0.5) / 2


@pytest.mark.parametrize("mode", MODES[3:])
def test_misleading_history_costs_little_after_five_runs(mode: str) -> None:
    assert regret(mode, 5.0) < regret(None, 5.0) + 0.05
