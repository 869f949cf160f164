"""Samplers and pruners by name, and values on their way into the study and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.tuner.support import job, memory
from tuner.jobspec import Choices, Range
from tuner.records import Outcome, Point, Value
from tuner.samplers import make_pruner
from tuner.search import Search
from tuner.study_space import StudySpace, distribution, from_study, labels, to_study, zero_edge

MIXED = {
    "lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "batch_size": {"low": 8, "high": 64, "int": True},
    "weight_decay": {"low": 1e-4, "high": 1e-1, "log": True, "or_zero": True},
    "nan_at": {"choices": [None, 1000]},
    "sleep_seconds": {"low": 0.0, "high": 1.0},
}
SAMPLERS = ["random", "tpe", "gp", "cmaes"]
AWKWARD: tuple[Any, ...] = (None, 1, True, 0, False, "1", "true", [1, 2], "[1, 2]", [True, 2], 2.5, "größe", "", [])


def tried(search: Search, count: int) -> list[dict[str, Any]]:
    """Ask and tell `count` trials; a third diverges, a third is pruned."""
    found = []
    search.resume()
    for number in range(count):
        candidate = search.ask()
        found.append(dict(candidate.parameters))
        value = float(candidate.parameters["lr"])
        search.report(candidate.number, Point(1, 1.0, 1, Value.of(value)))
        search.should_prune(candidate.number)
        outcome = (Outcome.OK, Outcome.DIVERGED, Outcome.PRUNED)[number % 3]
        search.tell(
            candidate.number, outcome, value if outcome == Outcome.OK else None, full_runs=1.0, device_seconds=1.0
        )
    return found


@pytest.mark.parametrize("value", [0.0, 1e-4, 5e-3, 0.1])
def test_a_value_of_an_or_zero_range_survives_the_study(value: float) -> None:
    parameter = Range(1e-4, 0.1, log=True, or_zero=True)
    inside = distribution(parameter)

    there = to_study(parameter, value)

    assert inside._contains(inside.to_internal_repr(there))
    assert from_study(parameter, there) == value


def test_zero_has_a_tenth_of_an_or_zero_range() -> None:
    parameter = Range(1e-4, 0.1, log=True, or_zero=True)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    drawn = [from_study(parameter, study.ask({"x": distribution(parameter)}).params["x"]) for _ in range(500)]

    assert 25 <= drawn.count(0.0) <= 75
    assert all(value == 0.0 or value >= 1e-4 for value in drawn)
    assert zero_edge(parameter) > 0


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_every_kind_of_choice_comes_back_from_the_database_as_it_was(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    parameter = Choices(AWKWARD)
    url = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    storage = optuna.storages.RDBStorage(url)
    study = optuna.create_study(study_name="job", storage=storage)
    for value in AWKWARD:
        study.enqueue_trial({"x": to_study(parameter, value)})
        study.ask({"x": distribution(parameter)})

    read = optuna.load_study(study_name="job", storage=storage).get_trials()
    storage.engine.dispose()

    assert [repr(from_study(parameter, trial.params["x"])) for trial in read] == [repr(value) for value in AWKWARD]


def test_no_two_choices_are_one_to_optuna() -> None:
    found = labels(Choices(AWKWARD))

    assert all(left != right for n, left in enumerate(found) for right in found[:n])


def test_true_and_1_among_the_choices_are_two_configurations() -> None:
    space = StudySpace({"x": Choices((1, True))})
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))

    values = {repr(space.ask(study).params["x"]) for _ in range(40)}

    assert values == {"1", "'true'"}


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "grid"])
def test_a_finite_space_is_tried_to_the_last_configuration_each_once(sampler: str) -> None:
    space = {"lr": {"choices": [0.001, 0.01, 0.1]}, "batch_size": {"low": 8, "high": 10, "int": True}}
    fixed = {"weight_decay": 0.0}
    search = Search(job(sampler=sampler, search={**space, **fixed}, baseline={"lr": 0.01}), "job", memory())
    search.resume()

    keys = []
    while search.has_queued or not search.is_exhausted:
        candidate = search.ask()
        keys.append((candidate.parameters["lr"], candidate.parameters["batch_size"]))
        search.tell(candidate.number, Outcome.OK, 1.0, full_runs=1.0, device_seconds=1.0)

    assert len(keys) == len(set(keys)) == 9


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_each_sampler_asks_a_mixed_space_with_a_baseline_outside_it(sampler: str) -> None:
    baseline = {"lr": 0.5, "batch_size": 128, "weight_decay": 0.0}
    search = Search(job(sampler=sampler, search=MIXED, baseline=baseline), "job", memory())

    found = tried(search, 14)

    assert {name: found[0][name] for name in baseline} == baseline
    assert all(1e-5 <= one["lr"] <= 0.1 and one["weight_decay"] <= 0.1 for one in found[1:])
    assert len({one["lr"] for one in found}) == 14


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp"])
def test_each_sampler_gets_along_with_one_parameter(sampler: str) -> None:
    space = {"lr": MIXED["lr"], "batch_size": 64, "weight_decay": 0.0}

    assert len(tried(Search(job(sampler=sampler, search=space), "job", memory()), 11)) == 11


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_seed_decides_everything(sampler: str) -> None:
    one, same, other = (
        tried(Search(job(sampler=sampler, search=MIXED, seed=seed), "job", memory()), 10) for seed in (5, 5, 6)
    )

    assert one == same
    assert one != other


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_seeds_at_the_extremes_are_fine(seed: int) -> None:
    assert len(tried(Search(job(search=MIXED, seed=seed), "job", memory()), 3)) == 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_study_taken_up_again_does_not_repeat_its_configurations(sampler: str) -> None:
    storage = memory()
    one = job(sampler=sampler, search=MIXED)

    found = [*tried(Search(one, "job", storage), 6), *tried(Search(one, "job", storage), 6)]

    assert len({parameters["lr"] for parameters in found}) == 12


@pytest.mark.parametrize("pruner", ["none", "median", "halving", "hyperband", "percentile", "patient"])
@pytest.mark.parametrize("reports", [1, 2, 20])
def test_each_pruner_judges_curves_and_spares_the_first_quarter(pruner: str, reports: int) -> None:
    spec = {"pruner": pruner, "sampler": "random", "fidelity": {"reports": reports}}
    search = Search(job(**spec), "job", memory())
    search.resume()
    verdicts: dict[int, list[bool]] = {}
    for number in range(12):
        candidate = search.ask()
        for index in range(1, reports + 1):
            search.report(candidate.number, Point(index, float(index), index, Value.of(number + 1.0 / index)))
            if index < reports:
                verdicts.setdefault(index, []).append(search.should_prune(candidate.number))
        search.tell(candidate.number, Outcome.OK, float(number), full_runs=1.0, device_seconds=1.0)

    assert not any(verdict for index, found in verdicts.items() for verdict in found if index < reports / 4)
    if reports == 20:
        assert any(any(found) for found in verdicts.values()) == (pruner not in ("none", "patient"))


def test_an_unknown_pruner_prunes_nothing() -> None:
    assert isinstance(make_pruner("none", 20), optuna.pruners.NopPruner)
