"""`when`: parameters that exist only where another one has certain values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tuner_spec.test_own_code import assert_refused, command, own, problems, warned
from tuner.conditions import active, parents_first
from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range, ResolvedJob
from tuner.spec import resolve
from tuner.spec_space import space_size

OPTIMIZER: dict[str, Any] = {"choices": ["adamw", "sgd", "lamb"]}
WIDTH: dict[str, Any] = {"low": 64, "high": 512, "int": True, "when": {"optimizer": "adamw"}}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("def train(config, probe): ...\n")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("when", "condition"),
    [
        ({"optimizer": "adamw"}, Condition("optimizer", ("adamw",))),
        ({"optimizer": ["adamw", "lamb"]}, Condition("optimizer", ("adamw", "lamb"))),
        ({"layers": 2}, Condition("layers", (2,))),
        ({"flag": True}, Condition("flag", (True,))),
        ({"flag": None}, Condition("flag", (None,))),
        ({"fixed": 3}, Condition("fixed", (3,))),
    ],
)
def test_a_condition_names_one_parameter_and_its_values(folder: str, when: Any, condition: Condition) -> None:
    search = {
        "optimizer": OPTIMIZER,
        "layers": {"low": 1, "high": 4, "int": True},
        "flag": {"choices": [True, False, None]},
        "fixed": 3,
        "width": {**WIDTH, "when": when},
    }
    job = resolve(own(folder, search=search)).job

    width = job.space["width"]
    assert isinstance(width, Range)
    assert width.when == condition
    assert ResolvedJob.from_json(json.loads(json.dumps(job.to_json()))) == job
    assert resolve({**job.to_json(), "workload": own(folder)["workload"]}).job.space == job.space


@pytest.mark.parametrize(
    ("when", "field", "part"),
    [
        ({"optimiser": "adamw"}, "search.width.when", "Did you mean optimizer?"),
        ({"width": 64}, "search.width.when", "depends on itself"),
        ({"lr": 0.1}, "search.width.when", "lr is a range of numbers"),
        ({"optimizer": "adam"}, "search.width.when.optimizer", "never that: it is one of 'adamw', 'sgd', 'lamb'"),
        ({"layers": 9}, "search.width.when.layers", "a whole number from 1 to 4"),
        ({"fixed": 4}, "search.width.when.fixed", "it is always 3"),
        ({"optimizer": "adamw", "layers": 2}, "search.width.when", "second condition on that parameter"),
        ({}, "search.width.when", "must name one parameter"),
        ("adamw", "search.width.when", "must name one parameter"),
        ({"optimizer": []}, "search.width.when", "must list plain values"),
        ({"optimizer": {"a": 1}}, "search.width.when", "must list plain values"),
    ],
)
def test_a_condition_that_cannot_be_told_is_refused(folder: str, when: Any, field: str, part: str) -> None:
    search = {
        "lr": {"low": 1e-5, "high": 0.1, "log": True},
        "optimizer": OPTIMIZER,
        "layers": {"low": 1, "high": 4, "int": True},
        "fixed": 3,
        "width": {**WIDTH, "when": when},
    }
    assert_refused(own(folder, search=search), field, part)


def test_a_circle_is_refused_at_each_of_its_parameters(folder: str) -> None:
    search = {
        "a": {"choices": [1, 2], "when": {"b": 1}},
        "b": {"choices": [1, 2], "when": {"c": 1}},
        "c": {"choices": [1, 2], "when": {"a": 1}},
    }

    found = problems(own(folder, search=search))

    assert [problem.field for problem in found] == ["search.a.when", "search.b.when", "search.c.when"]
    assert "a on b on c" in found[0].message


def test_batch_size_and_the_parameters_of_built_ins_always_exist(folder: str) -> None:
    search = {"optimizer": OPTIMIZER, "batch_size": {"choices": [8, 16], "when": {"optimizer": "sgd"}}}

    assert_refused(own(folder, search=search), "search.batch_size.when", "batch_size always exists")
    built_in = {"search": {"momentum": {"low": 0.1, "high": 0.9, "when": {"optimizer": "sgd"}}}}
    assert_refused(built_in, "search.momentum.when", "your own code")


def test_the_baseline_has_only_what_exists_in_it(folder: str) -> None:
    search = {
        "optimizer": OPTIMIZER,
        "width": WIDTH,
        "momentum": {"low": 0.1, "high": 0.9, "when": {"optimizer": "sgd"}},
    }

    with_adamw = resolve(own(folder, search=search))
    with_sgd = resolve(own(folder, search=search, baseline={"optimizer": "sgd", "momentum": 0.9}))

    assert dict(with_adamw.job.baseline) == {"optimizer": "adamw", "width": 288}
    assert "momentum" not in warned(with_adamw)["baseline"]
    assert dict(with_sgd.job.baseline) == {"optimizer": "sgd", "momentum": 0.9}


def test_a_baseline_value_of_what_does_not_exist_there_is_refused_by_name(folder: str) -> None:
    spec = own(folder, search={"optimizer": OPTIMIZER, "width": WIDTH}, baseline={"optimizer": "sgd", "width": 64})

    assert_refused(spec, "baseline.width", "optimizer is 'sgd'", "search.width.when", "leave it out")


def test_what_depends_on_what_does_not_exist_does_not_exist_either() -> None:
    space: dict[str, Parameter] = {
        "depth": Choices((1, 2), Condition("width", (64,))),
        "width": Choices((64, 128), Condition("optimizer", ("adamw",))),
        "optimizer": Choices(("adamw", "sgd")),
        "lr": Fixed(0.1),
    }

    assert parents_first(space) == ["optimizer", "width", "depth", "lr"]
    assert active(space, {"depth": 1, "width": 64, "optimizer": "sgd", "lr": 0.1}) == {"optimizer": "sgd", "lr": 0.1}
    assert active(space, {"depth": 1, "width": 128, "optimizer": "adamw"}) == {"width": 128, "optimizer": "adamw"}
    assert active(space, {"depth": 1, "width": 64, "optimizer": "adamw"}).keys() == {"depth", "width", "optimizer"}


@pytest.mark.parametrize(
    ("space", "size"),
    [
        ({"o": Choices(("a", "b")), "w": Choices((1, 2, 3), Condition("o", ("a",)))}, 4),
        ({"o": Choices(("a", "b")), "w": Range(1, 2, when=Condition("o", ("a",)))}, None),
        ({"o": Fixed("b"), "w": Range(1, 2, when=Condition("o", ("b",)))}, None),
        ({"n": Range(1, 10, integer=True), "w": Choices((1, 2), Condition("n", (1, 2)))}, 12),
        (
            {
                "o": Choices(("a", "b")),
                "w": Choices((1, 2, 3), Condition("o", ("a",))),
                "d": Choices((1, 2), Condition("w", (1, 2))),
                "m": Choices((5, 6), Condition("o", ("a", "b"))),
                "x": Choices((True, False)),
            },
            ((2 + 2 + 1) * 2 + 2) * 2,
        ),
    ],
)
def test_only_what_exists_together_is_counted(space: Any, size: int | None) -> None:
    assert space_size(space) == size


def test_a_finite_conditional_space_is_known_to_be_smaller_than_the_trials(folder: str) -> None:
    search = {"optimizer": OPTIMIZER, "width": {"choices": [64, 128], "when": {"optimizer": "adamw"}}}

    resolution = resolve(own(folder, search=search))

    assert "only 4 configurations" in warned(resolution)["search"]
    assert resolution.estimate.trials == 4


@pytest.mark.parametrize("sampler", ["gp", "cmaes"])
def test_samplers_that_cannot_learn_about_conditions_say_so(folder: str, sampler: str) -> None:
    search = {
        "lr": {"low": 1e-5, "high": 0.1, "log": True},
        "decay": {"low": 0.0, "high": 0.1},
        "optimizer": OPTIMIZER,
        "width": WIDTH,
    }

    warnings = resolve(own(folder, search=search, sampler=sampler)).warnings

    assert any(w.field == "sampler" and "width will be drawn at random" in w.message for w in warnings)


def test_an_argument_of_what_may_not_exist_has_to_be_its_own(folder: str) -> None:
    search = {"optimizer": OPTIMIZER, "width": WIDTH}
    good = command(folder, "x", "{optimizer}", "--width", "{width}", "--w={width}", "w-{width}", search=search)
    mixed = command(folder, "x", "{optimizer}-{width}", search=search)
    program = command(folder, "{width}", "{optimizer}", search=search)

    resolve(good)
    assert_refused(mixed, "workload.command.1", "give it one of its own")
    assert_refused(program, "workload.command.0", "give it one of its own")
