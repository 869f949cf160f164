"""Which jobs a job learns from, and what it takes over from their trials."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tuner.earlier_jobs import EarlierJob, EarlierTrial, distance, learn, most_similar, values_at_rungs
from tuner.freeze_thaw import RUNGS
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome
from tuner.spec import resolve

SPEC: dict[str, Any] = {"workload": "quadratic", "search": {"lr": {"low": 1e-3, "high": 1.0, "log": True}}}


def job(**changes: Any) -> ResolvedJob:
    return resolve(SPEC | changes).job


def trial(parameters: dict[str, Any], last: float, outcome: Outcome = Outcome.OK, until: float = 1.0) -> EarlierTrial:
    curve = [(index / 20, last + 1 - index / 20) for index in range(1, 21) if index / 20 <= until]
    return EarlierTrial(parameters, outcome, curve)


def earlier(one: ResolvedJob, count: int = 20, sign: float = 1.0) -> EarlierJob:
    rng = np.random.default_rng(0)
    rates = 10 ** rng.uniform(-3, 0, count)
    losses = [sign * abs(math.log10(rate) + 1.5) for rate in rates]
    return EarlierJob("a", one, [trial({**one.baseline, "lr": r}, v) for r, v in zip(rates, losses, strict=True)])


def test_the_same_work_is_nearest_and_a_longer_run_or_another_workload_is_farther() -> None:
    now = job()
    longer = job(fidelity={"max": now.fidelity.max * 4})
    assert distance(now, job()) == 0
    assert distance(now, longer) == pytest.approx(0.5)
    assert most_similar(now, {"b": longer, "a": job()}) == ["a", "b"]


def test_another_objective_or_a_parameter_that_it_does_not_have_says_nothing() -> None:
    now = job()
    lacking = resolve({"workload": "tabular-mlp", "search": {"label_smoothing": {"low": 0.0, "high": 0.2}}}).job
    assert distance(lacking, now) is None
    maximized = resolve(SPEC | {"objective": {"metric": now.objective.metric, "direction": "maximize"}}).job
    assert distance(now, maximized) is None


def test_text_that_is_fixed_must_not_differ_and_numbers_may() -> None:
    spec = {"workload": "digits-cnn"}
    adamw = resolve(spec | {"search": {"optimizer": "adamw"}}).job
    assert distance(adamw, resolve(spec | {"search": {"optimizer": "sgd"}}).job) is None
    assert distance(adamw, resolve(spec | {"search": {"optimizer": "adamw", "beta1": 0.8}}).job) == 0


def test_values_are_those_at_the_rungs_that_a_trial_came_to() -> None:
    assert len(values_at_rungs(trial({}, 1.0), 1.0)) == len(RUNGS)
    cut = values_at_rungs(trial({}, 1.0, Outcome.PRUNED, until=0.3), 1.0)
    assert cut == pytest.approx([1.95, 1.9, 1.9, 1.85, 1.8, 1.7])
    assert values_at_rungs(trial({}, 1.0, Outcome.PRUNED, until=0.3), -1.0) == [-value for value in cut]


def test_what_diverged_counts_as_the_worst_and_what_crashed_not_at_all() -> None:
    assert values_at_rungs(trial({}, 1.0, Outcome.DIVERGED, until=0.1), 1.0)[-1] == math.inf
    assert values_at_rungs(trial({}, 1.0, Outcome.CRASHED), 1.0) == []
    assert values_at_rungs(EarlierTrial({}, Outcome.PRUNED, [(0.5, None)]), 1.0) == []


def test_a_job_begins_near_the_best_of_an_earlier_one() -> None:
    learnt = learn(job(), [earlier(job())])
    assert [dict(one) for one in learnt.jobs] == [{"job": "a", "workload": "quadratic", "trials": 20}]
    assert learnt.history is not None
    opening = learnt.history.portfolio(learnt.history.leaders)
    assert min(abs(point[0] - 0.5) for point in opening) < 0.06


def test_a_maximised_metric_is_turned_round() -> None:
    maximized = SPEC | {"objective": {"metric": "loss", "direction": "maximize"}}
    now = resolve(maximized | {"objective": {"metric": job().objective.metric, "direction": "maximize"}}).job
    learnt = learn(now, [earlier(now, sign=-1.0)])
    assert learnt.history is not None
    assert min(abs(point[0] - 0.5) for point in learnt.history.portfolio(learnt.history.leaders)) < 0.06


def test_trials_outside_the_new_space_and_jobs_with_too_few_are_left_out() -> None:
    narrow = job(search={"lr": {"low": 0.9, "high": 1.0, "log": True}}, baseline={"lr": 0.95})
    assert learn(narrow, [earlier(job())]).history is None
    assert learn(job(), [earlier(job(), count=2)]).jobs == ()


@pytest.mark.parametrize("outcome", [Outcome.DIVERGED, Outcome.OK])
def test_a_job_whose_trials_all_ended_alike_says_nothing_and_takes_nothing_from_the_others(outcome: Outcome) -> None:
    now = job()
    rates = 10 ** np.random.default_rng(1).uniform(-3, 0, 20)
    alike = EarlierJob("alike", now, [trial({**now.baseline, "lr": rate}, 1.0, outcome, 0.01) for rate in rates])
    if outcome == Outcome.OK:
        alike = EarlierJob("alike", now, [trial({**now.baseline, "lr": rate}, 1.0) for rate in rates])
    assert learn(now, [alike]).history is None
    both = learn(now, [earlier(now), alike, earlier(now, count=15)])
    assert [told["trials"] for told in both.jobs] == [20, 15]


def test_without_anything_to_search_there_is_nothing_to_learn() -> None:
    values = {"lr": 0.1, "batch_size": 32, "weight_decay": 0.0}
    fixed = job(search={name: values[name] for name in job().searched})
    assert learn(fixed, [earlier(job())]).history is None
