"""Recipes and diagnosis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from tests.tuner.support import closed, confirmation
from tuner.confirmation import judge
from tuner.recommendation import baseline_of, confirmed_recipes, diagnose, finalists, ranked, seen_recipes
from tuner.records import Outcome, RecipeDraft
from tuner.search import Closed

BASELINE = closed(0, 1.0, is_baseline=True)


def codes(trials: list[Closed], recipes: Any = (), confirmed: bool = False) -> list[str]:
    return [finding.code for finding in diagnose(trials, recipes, "minimize", "val_loss", confirmed)]


def provisional(trials: list[Closed], direction: Literal["minimize", "maximize"], top: int) -> list[RecipeDraft]:
    baseline = baseline_of(trials)
    base = baseline.value if baseline else None
    return seen_recipes([(trial, base) for trial in finalists(trials, direction, top)], direction, "cpu")


@pytest.mark.parametrize(("direction", "best"), [("minimize", [2, 3]), ("maximize", [4, 1])])
def test_finalists_beat_the_baseline_best_first(direction: Literal["minimize", "maximize"], best: list[int]) -> None:
    trials = [BASELINE, *(closed(n, value) for n, value in enumerate((1.1, 0.2, 0.5, 1.5), start=1))]

    assert [trial.number for trial in finalists(trials, direction, 2)] == best


def test_a_tie_with_the_baseline_is_no_finalist() -> None:
    assert finalists([BASELINE, closed(1, 1.0)], "minimize", 3) == []


def test_where_the_baseline_did_not_train_every_trial_that_did_may_be_a_finalist() -> None:
    trials = [closed(0, None, Outcome.DIVERGED, is_baseline=True), closed(1, 5.0)]

    (recipe,) = provisional(trials, "minimize", 3)

    assert (recipe.trial, recipe.baseline_value, recipe.difference) == (1, None, None)


def test_a_configuration_tried_twice_is_ranked_once() -> None:
    again = Closed(3, closed(1).parameters, False, Outcome.OK, 0.4, 1.0, 1.0)

    assert [trial.number for trial in ranked([BASELINE, closed(1, 0.5), again], "minimize")] == [3, 0]


def test_only_trials_that_reached_the_horizon_are_ranked() -> None:
    others = [closed(n, None, outcome) for n, outcome in enumerate(Outcome, start=1) if outcome != Outcome.OK]

    assert ranked([BASELINE, *others], "minimize") == [BASELINE]


@pytest.mark.parametrize(("direction", "gain"), [("minimize", 0.25), ("maximize", -0.25)])
def test_a_difference_is_positive_when_better(direction: Literal["minimize", "maximize"], gain: float) -> None:
    trials = [closed(0, 1.0 if gain > 0 else 0.5, is_baseline=True), closed(1, 0.75)]

    assert [recipe.difference for recipe in provisional(trials, direction, 1)] == [0.25]


def test_all_diverged_names_the_learning_rates() -> None:
    trials = [closed(n, None, Outcome.DIVERGED, is_baseline=n == 0) for n in range(3)]

    (finding,) = diagnose(trials, [], "minimize", "val_loss", False)

    assert finding.code == "all_diverged"
    assert finding.evidence == {"outcomes": {"diverged": 3}, "lowest_lr": 0.001, "highest_lr": 0.003}
    assert "below 0.001" in finding.action


def test_a_search_that_its_budget_cut_short_is_told_to_raise_the_budget() -> None:
    trials = [closed(0, None, Outcome.CANCELLED, is_baseline=True), closed(1, None, Outcome.CANCELLED)]

    (finding,) = diagnose(trials, [], "minimize", "val_loss", False)

    assert (finding.code, "Raise the budget" in finding.action) == ("nothing_trained", True)


def test_each_way_of_ending_without_a_recipe_has_its_code() -> None:
    assert codes([]) == ["nothing_ran"]
    assert codes([closed(0, None, Outcome.LOST)]) == ["nothing_ran"]
    assert codes([BASELINE]) == ["nothing_tried"]
    assert codes([closed(0, None, Outcome.CRASHED)]) == ["nothing_trained"]
    assert codes([BASELINE, closed(1, 2.0)]) == ["baseline_is_best"]


def test_a_lead_within_the_noise_is_not_significant_and_a_clear_one_is_proven() -> None:
    runs = [confirmation(trial, seed, value) for trial, seed, value in _scores()]
    scores: dict[int, dict[int, float | None]] = {}
    for run in runs:
        scores.setdefault(run.trial, {})[run.seed] = run.value.number
    trials = [BASELINE, closed(1, 0.5), closed(2, 0.6)]

    unclear = confirmed_recipes([trials[1]], judge(scores[0], {1: scores[1]}, "minimize", 1), runs, "minimize", "cpu")
    judged = judge(scores[0], {n: scores[n] for n in (1, 2)}, "minimize", 1)
    both = confirmed_recipes(trials[1:], judged, runs, "minimize", "cpu")

    assert codes(trials[:2], unclear, confirmed=True) == ["not_significant"]
    assert codes(trials, both, confirmed=True) == []
    assert [(recipe.trial, recipe.rank, recipe.status) for recipe in both] == [(2, 1, "proven"), (1, 2, "provisional")]


def test_seeds_without_an_effect_leave_chance_untested() -> None:
    same, better = dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 0.5)
    runs = [confirmation(trial, seed, scores[seed]) for trial, scores in ((0, same), (1, better)) for seed in scores]
    trials = [BASELINE, closed(1, 0.5)]

    recipes = confirmed_recipes(trials[1:], judge({**same}, {1: {**better}}, "minimize", 1), runs, "minimize", "cpu")

    assert [(recipe.status, recipe.confidence) for recipe in recipes] == [("proven", None)]
    assert codes(trials, recipes, confirmed=True) == ["seed_has_no_effect"]


def _scores() -> list[tuple[int, int, float]]:
    noisy = [(1, seed, value) for seed, value in enumerate((0.1, 1.9, 0.9, 1.2, 0.8))]
    clear = [(2, seed, 0.5 + 0.01 * seed) for seed in range(5)]
    return [*((0, seed, 1.0 + 0.02 * seed) for seed in range(5)), *noisy, *clear]


def test_a_recipe_says_what_its_batch_size_costs_by_the_gradient_noise() -> None:
    pace = {"noise_scale": 64.0, "samples_per_s": 900.0}
    trial = replace(closed(1, 0.5), parameters={"lr": 0.1, "batch_size": 32}, pace=pace)

    (draft,) = provisional([BASELINE, trial], "minimize", 1)

    shown = {name: draft.spend[name] for name in ("critical_batch", "steps_factor", "samples_factor", "samples_per_s")}
    assert shown == {"critical_batch": 64.0, "steps_factor": 3.0, "samples_factor": 1.5, "samples_per_s": 900.0}
