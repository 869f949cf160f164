"""Our search in plain Optuna studies: real studies, real storages, nothing of ours around them."""

from __future__ import annotations

import math
import runpy
from pathlib import Path
from typing import Literal

import optuna
import pytest
from optuna.trial import TrialState

import x5tune
from tuner.optuna_search import FreezeThawPruner, FreezeThawSampler, rungs_until

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_optuna.py"
LAST = 20


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def loss_of(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-5, 1.0, log=True)
    width = trial.suggest_int("width", 16, 256, step=16)
    kind = trial.suggest_categorical("kind", ["a", "b", None])
    return (math.log10(lr) + 2) ** 2 + abs(width - 128) / 128 + (kind is not None)


def curve(trial: optuna.Trial, first: int = 1, sign: float = 1.0) -> float:
    last = loss_of(trial)
    for step in range(first, LAST + first):
        trial.report(sign * (last + math.exp(-step / 5)), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return sign * last


def ours(
    storage: str | None = None,
    direction: Literal["minimize", "maximize"] = "minimize",
    last: int | None = LAST,
    name: str = "s",
) -> optuna.Study:
    return optuna.create_study(
        storage=storage,
        study_name=name,
        direction=direction,
        load_if_exists=True,
        sampler=FreezeThawSampler(last, seed=1),
        pruner=FreezeThawPruner(last) if last else optuna.pruners.NopPruner(),
    )


def test_it_finds_better_configurations_than_random_search() -> None:
    studies = [ours(last=None), optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))]
    for study in studies:
        study.optimize(loss_of, n_trials=40)
    assert studies[0].best_value < studies[1].best_value / 2


def test_it_stops_bad_trials_the_fewer_the_earlier_and_never_at_the_last_step() -> None:
    study = ours()
    study.optimize(curve, n_trials=60)
    pruned = [trial for trial in study.trials if trial.state == TrialState.PRUNED]
    complete = [trial for trial in study.trials if trial.state == TrialState.COMPLETE]
    assert 15 < len(pruned) < 55
    assert all(trial.last_step is not None and trial.last_step < LAST for trial in pruned)
    assert all(len(trial.intermediate_values) == LAST for trial in complete)
    early = sum(trial.last_step is not None and trial.last_step < LAST / 4 for trial in pruned)
    assert early < len(study.trials) / 2
    assert study.best_value < 0.6


def test_a_metric_that_is_maximised_is_searched_upwards() -> None:
    study = ours(direction="maximize")
    study.optimize(lambda trial: curve(trial, sign=-1.0), n_trials=40)
    assert study.best_value > -0.6


def test_steps_may_count_from_zero() -> None:
    study = ours(last=LAST - 1)
    study.optimize(lambda trial: curve(trial, first=0), n_trials=30)
    assert any(trial.state == TrialState.PRUNED for trial in study.trials)
    assert any(trial.state == TrialState.COMPLETE for trial in study.trials)


def test_the_same_seed_and_study_propose_the_same() -> None:
    studies = [ours(), ours()]
    for study in studies:
        study.optimize(curve, n_trials=25)
    assert [trial.params for trial in studies[0].trials] == [trial.params for trial in studies[1].trials]


def test_a_study_is_taken_up_from_its_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    ours(url).optimize(curve, n_trials=15)
    again = ours(url)
    again.optimize(curve, n_trials=15)
    assert len(again.trials) == 30
    assert min(loss for trial in again.trials[15:] if (loss := trial.value) is not None) < 1.0


def test_failed_trials_and_values_that_are_no_numbers_do_no_harm() -> None:
    def objective(trial: optuna.Trial) -> float:
        loss = curve(trial)
        if trial.number % 5 == 1:
            raise RuntimeError("broken")
        if trial.number % 5 == 2:
            trial.report(math.nan, LAST + 1)
        return loss

    study = ours()
    study.optimize(objective, n_trials=30, catch=RuntimeError)
    assert study.best_value < 2.0


def test_a_small_space_is_searched_to_the_last_configuration() -> None:
    study = optuna.create_study(sampler=FreezeThawSampler(seed=2))
    study.optimize(lambda trial: float(trial.suggest_int("n", 1, 6)), n_trials=12)
    assert {trial.params["n"] for trial in study.trials} == set(range(1, 7))


def test_several_objectives_are_refused() -> None:
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=FreezeThawSampler(seed=3))

    def both(trial: optuna.Trial) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        return x, 1 - x

    with pytest.raises(ValueError, match="multi-objective"):
        study.optimize(both, n_trials=3)


def test_a_last_step_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="last_step = 0"):
        FreezeThawPruner(0)
    assert rungs_until(4) == (0.25, 0.5, 0.75, 1.0)


def test_both_are_found_in_x5tune_and_the_example_runs() -> None:
    assert x5tune.FreezeThawSampler is FreezeThawSampler
    assert x5tune.FreezeThawPruner is FreezeThawPruner
    study = runpy.run_path(str(EXAMPLE))["main"](trials=25)
    assert study.best_value < 2.0


def test_a_range_with_few_steps_is_tried_to_its_last_value_before_any_is_tried_twice() -> None:
    study = optuna.create_study(sampler=FreezeThawSampler(seed=1))
    study.optimize(
        lambda trial: trial.suggest_int("wide", 0, 100, step=25) + trial.suggest_float("part", 0.1, 0.7, step=0.3),
        n_trials=15,
    )
    tried = [(trial.params["wide"], round(trial.params["part"], 6)) for trial in study.trials[1:]]
    assert len(set(tried)) >= 13
