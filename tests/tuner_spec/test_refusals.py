"""What is refused: with the field, the value, and what to write instead."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tuner.spec import Problem, SpecError, resolve

NESTED: list[Any] = []
for _ in range(5000):
    NESTED = [NESTED]

DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"lr": DEEP}


def problems(spec: object) -> tuple[Problem, ...]:
    with pytest.raises(SpecError) as caught:
        resolve(spec)
    return caught.value.problems


def search(**parameters: object) -> dict[str, object]:
    return {"search": parameters}


CASES: list[tuple[object, str, str]] = [
    # numbers
    (search(lr={"low": 0.1, "high": 0.01}), "search.lr.low", "low must be below high"),
    (search(lr={"low": 0.1, "high": 0.1}), "search.lr.low", "low must be below high"),
    (search(lr={"low": 5}), "search.lr.low", "workload's default"),
    (search(weight_decay={"low": 0, "high": 1, "log": True}), "search.weight_decay.low", "above 0 in a log range"),
    (search(weight_decay={"low": -1, "high": 1, "log": True}), "search.weight_decay.low", "at least 0"),
    (search(lr={"low": math.nan, "high": 1}), "search.lr.low", "finite"),
    (search(lr={"low": 1e-3, "high": math.inf}), "search.lr.high", "finite"),
    (search(lr={"low": 1e-3, "high": 10**400}), "search.lr.high", "finite"),
    (search(lr={"low": 1e-3, "high": "1e999"}), "search.lr.high", "finite"),
    (search(lr={"low": 1e-3, "high": "fast"}), "search.lr.high", "number"),
    (search(lr={"low": "0x10", "high": 100}), "search.lr.low", "number"),
    (search(lr={"low": "1_000", "high": 1e4}), "search.lr.low", "number"),
    (search(lr={"low": " 5 ", "high": 10}), "search.lr.low", "number"),
    (search(lr={"low": "٣", "high": 10}), "search.lr.low", "number"),
    (search(lr={"low": "nan", "high": 10}), "search.lr.low", "number"),
    (search(lr="inf"), "search.lr", "number"),
    (search(lr=True), "search.lr", "number"),
    (search(lr={"low": True, "high": 2}), "search.lr.low", "number"),
    (search(batch_size=40.5), "search.batch_size", "whole"),
    (search(batch_size={"low": 1.5, "high": 8}), "search.batch_size.low", "whole"),
    (search(batch_size=10**4000), "search.batch_size", "too large"),
    (search(lr=0), "search.lr", "above 0"),
    (search(lr={"low": 0, "high": 1}), "search.lr.low", "above 0"),
    (search(batch_size=0), "search.batch_size", "at least 1"),
    (search(dropout=1), "search.dropout", "at most 0.95"),
    # ranges and choices
    (search(weight_decay={"low": 0.1, "high": 1, "or_zero": True}), "search.weight_decay.or_zero", "log"),
    (search(lr={"low": 0.1, "high": 1, "log": True, "or_zero": True}), "search.lr.or_zero", "above 0"),
    (search(weight_decay={"low": 1e-200, "high": 1, "log": True}), "search.weight_decay", "spans too much"),
    (
        search(weight_decay={"low": 1, "high": 8, "int": True, "log": True, "or_zero": True}),
        "search.weight_decay.or_zero",
        "whole numbers",
    ),
    (search(lr={"low": 0.1, "high": 1, "log": "yes"}), "search.lr.log", "true or false"),
    (search(batch_size={"low": 1, "high": 8, "int": False}), "search.batch_size.int", "whole number"),
    (search(momentum={"high": 0.9}), "search.momentum.low", "missing"),
    (search(momentum={}), "search.momentum.high", "missing"),
    (search(lr={"choices": []}), "search.lr.choices", "empty"),
    (search(lr={"choices": 1}), "search.lr.choices", "list"),
    (search(lr={"choices": None}), "search.lr.choices", "list"),
    (search(lr={"choices": [1, "1.0"]}), "search.lr.choices.1", "same"),
    (search(lr={"choices": [1, True]}), "search.lr.choices.1", "number"),
    (search(lr={"choices": [{"low": 1}]}), "search.lr.choices.0", "mapping"),
    (search(lr={"choices": [[1]]}), "search.lr.choices.0", "list"),
    (search(lr={"choices": [0.001 * i for i in range(1, 1002)]}), "search.lr.choices", "at most 1000"),
    (search(lr={"choices": [1], "low": 2}), "search.lr.choices", "combined"),
    (search(lr={"low": 1, "hihg": 2, "high": 3}), "search.lr.hihg", "Did you mean high?"),
    (search(lr={"low": 1, "high": 2, "when": {"optimizer": "sgd"}}), "search.lr.when", "your own code"),
    (search(lr=[0.1, 0.2]), "search.lr", "{choices: [...]}"),
    (search(lr={1: 2}), "search.lr", "not text"),
    (search(optimizer={"low": 1, "high": 2}), "search.optimizer", "adamw, sgd"),
    (search(optimizer="adamW"), "search.optimizer", "Did you mean adamw?"),
    (search(optimizer="lambda"), "search.optimizer", "Did you mean lamb?"),
    (search(optimizer={"choices": ["adamw", "adam"]}), "search.optimizer.choices.1", "must be one of"),
    (search(optimizer={"a": 1}), "search.optimizer.a", "no key"),
    (search(optimizer=[[1]]), "search.optimizer", "list"),
    (search(optimizer=True), "search.optimizer", "adamw, sgd"),
    (search(loss_scale="Auto"), "search.loss_scale", "the word auto"),
    (search(grad_clip="none"), "search.grad_clip", "null"),
    (search(grad_clip={"relative": 0}), "search.grad_clip.relative", "above 0"),
    (search(grad_clip={"relative": 1, "low": 1}), "search.grad_clip", "keep one"),
    (search(warmup={"start": 1e-7}), "search.warmup", "one of the keys steps, fraction"),
    (search(warmup={"steps": 10, "fraction": 0.1}), "search.warmup", "one of the keys steps, fraction"),
    (search(warmup={"fraction": 1.5}), "search.warmup.fraction", "at most 1"),
    (search(warmup={"steps": 2.5}), "search.warmup.steps", "whole"),
    (search(warmup=1.5), "search.warmup", "at most 1"),
    (search(learning_rat=1), "search.learning_rat", "There are: lr, batch_size"),
    ({"search": [1]}, "search", "mapping"),
    ({"search": {None: 1}}, "search", "not text"),
    # baseline
    ({"baseline": {"lr": {"low": 1, "high": 2}}}, "baseline.lr", "one value"),
    ({"baseline": {"lr": -1}}, "baseline.lr", "above 0"),
    ({"baseline": {"batchsize": 1}}, "baseline.batchsize", "Did you mean batch_size?"),
    ({"baseline": "fast"}, "baseline", "mapping"),
    ({"baseline": {"warmup": {"steps": 0}}}, "baseline.warmup.steps", "at least 1"),
    # workload and objective
    ({"workload": "digit-cnn"}, "workload", "Did you mean digits-cnn?"),
    ({"workload": "train.py:Mine"}, "workload", "Code of your own is a mapping such as {python: train.py:train,"),
    ({"workload": "mine:train"}, "workload", "Code of your own is a mapping"),
    ({"workload": 5}, "workload", "built-in"),
    ({"objective": "val_loss"}, "objective", "mapping"),
    ({"objective": {"metric": "loss"}}, "objective.metric", "val_loss"),
    ({"objective": {"metric": "val_accuracy"}}, "objective.direction", "maximize"),
    ({"objective": {"direction": "up"}}, "objective.direction", "minimize, maximize"),
    # fidelity
    ({"fidelity": {"axis": "epochs", "max": 3}}, "fidelity.axis", "samples"),
    ({"fidelity": {"axis": "tokens", "max": 3}}, "fidelity.axis", "no tokens"),
    ({"fidelity": {"axis": "steps", "max": 300}}, "fidelity.axis", "fix it in search"),
    ({"fidelity": {"axis": "seconds"}}, "fidelity.max", "missing"),
    ({"fidelity": {"max": 0}}, "fidelity.max", "at least 1"),
    ({"fidelity": {"axis": "seconds", "max": 0}}, "fidelity.max", "above 0"),
    ({"fidelity": {"max": math.inf}}, "fidelity.max", "finite"),
    ({"fidelity": {"reports": 0}}, "fidelity.reports", "at least 1"),
    ({"fidelity": {"reports": 1001}}, "fidelity.reports", "at most 1000"),
    ({"search": {"batch_size": 8}, "fidelity": {"axis": "steps", "max": 2.5}}, "fidelity.max", "whole"),
    # budget and limits
    ({"budget": {"trials": 0}}, "budget.trials", "null for no cap"),
    ({"budget": {"trials": 100_001}}, "budget.trials", "at most 100000"),
    ({"budget": {"full_runs": 0}}, "budget.full_runs", "null for no cap"),
    ({"budget": {"seconds": 0}}, "budget.seconds", "null for no cap"),
    ({"budget": {"device_hours": -1}}, "budget.device_hours", "above 0"),
    ({"budget": {"energy_kwh": 0}}, "budget.energy_kwh", "above 0"),
    ({"budget": {"cost": 5}}, "budget.cost", "per_device_hour"),
    ({"budget": {"cost": {"amount": 5}}}, "budget.cost.per_device_hour", "missing"),
    ({"budget": {"cost": {"amount": 0, "per_device_hour": 1}}}, "budget.cost.amount", "above 0"),
    ({"budget": 40}, "budget", "mapping"),
    ({"limits": {"memory_fraction": 1.1}}, "limits.memory_fraction", "at most 1"),
    ({"limits": {"host_memory_mib": 0}}, "limits.host_memory_mib", "null for no limit"),
    ({"limits": {"probe_seconds": 0}}, "limits.probe_seconds", "above 0"),
    ({"limits": {"silence_seconds": 0}}, "limits.silence_seconds", "above 0"),
    ({"limits": {"max_failures": 0}}, "limits.max_failures", "at least 1"),
    ({"limits": {"max_accumulation": 0}}, "limits.max_accumulation", "at least 1"),
    (
        {"limits": {"max_accumulation": 8}, "search": {"batch_size": {"low": 8, "high": 64, "int": True}}},
        "limits.max_accumulation",
        "Give search.batch_size choices",
    ),
    ({"limits": {"checkpointing": "on"}}, "limits.checkpointing", "auto, always, never"),
    ({"limits": {"checkpointing": "always"}, "workload": "quadratic"}, "limits.checkpointing", "Use auto or never."),
    # the rest
    ({"precision": "fp8"}, "precision", "bf16"),
    ({"pruner": "medium"}, "pruner", "Did you mean median?"),
    ({"sampler": ["tpe"]}, "sampler", "tpe"),
    ({"sampler": "grid"}, "sampler", "lr, weight_decay"),
    ({"sampler": "freeze_thaw", "pruner": "median"}, "sampler", "leave pruner out instead of median"),
    ({"sampler": "tpe", "pruner": "freeze_thaw"}, "pruner", "leave sampler out instead of tpe"),
    ({"limits": {"checkpoints_mib": -1}}, "limits.checkpoints_mib", "0 to pause nothing"),
    ({"sampler": "cmaes", "search": {"lr": 0.1}}, "sampler", "at least two ranges"),
    ({"confirm": {"top": 11}}, "confirm.top", "at most 10"),
    ({"confirm": {"seeds": 1}}, "confirm.seeds", "One seed"),
    ({"confirm": {"seeds": 65}}, "confirm.seeds", "at most 64"),
    ({"confirm": True}, "confirm", "mapping"),
    ({"workload": "quadratic", "resources": {"processes": 2}}, "resources.processes", "one process"),
    ({"resources": {"cpus": 0}}, "resources.cpus", "above 0"),
    ({"resources": {"gpus": 1.5}}, "resources.gpus", "whole number"),
    ({"resources": {"gpus": "all"}}, "resources.gpus", "auto"),
    ({"environment": {"A B": "x"}}, "environment.A B", "letters"),
    ({"environment": {"X5TUNE_URL": "x"}}, "environment.X5TUNE_URL", "belong to x5tune"),
    ({"environment": {"A": True}}, "environment.A", "quotes"),
    ({"environment": {"A": None}}, "environment.A", "quotes"),
    ({"environment": {"A": "x\0y"}}, "environment.A", "character"),
    ({"environment": {1: "x"}}, "environment", "name"),
    ({"environment": {f"A{i}": 1 for i in range(1001)}}, "environment", "at most 1000"),
    ({"metrics": {"stdout": "x"}}, "metrics", "commands only"),
    ({"metrics": {"tensorboard": "x"}}, "metrics", "commands only"),
    ({"snapshot": True}, "snapshot", "digits-cnn has no folder"),
    ({"history": "no"}, "history", "true or false"),
    ({"range_test": 1}, "range_test", "true or false"),
    ({"health": {"activation": True}}, "health.activation", "activations"),
    ({"workload": "quadratic", "health": {"activations": True}}, "health.activations", "quadratic trains by itself"),
    ({"priority": 1001}, "priority", "at most 1000"),
    ({"priority": True}, "priority", "number"),
    ({"seed": -1}, "seed", "at least 0"),
    ({"seed": 2**32}, "seed", "at most 4294967295"),
    ({"name": "a\nb"}, "name", "control characters"),
    ({"name": "\ud800"}, "name", "control characters"),
    ({"name": "x" * 201}, "name", "at most 200"),
    ({"name": "  "}, "name", "empty"),
    ({"name": ["x"]}, "name", "text"),
    ({"serach": {}}, "serach", "Did you mean search?"),
    ({True: 1}, "", "not text"),
    ([], "", "mapping"),
    (None, "", "mapping"),
    ("workload: digits-cnn", "", "mapping"),
    # hostile
    (search(lr=NESTED), "search.lr", "list"),
    ({"search": DEEP}, "search.lr.lr", "no key"),
    ({"workload": "x" * 10**6}, "workload", "no built-in"),
]


@pytest.mark.parametrize(("spec", "field", "part"), CASES, ids=[f"{field}-{part}" for _, field, part in CASES])
def test_a_bad_value_is_refused_with_its_field_and_a_remedy(spec: object, field: str, part: str) -> None:
    found = problems(spec)

    assert any(problem.field == field and part in problem.message for problem in found), found


@pytest.mark.parametrize("spec", [spec for spec, _, _ in CASES])
def test_problems_are_short_and_can_be_sent_as_json(spec: object) -> None:
    found = problems(spec)

    json.dumps([problem.value for problem in found], allow_nan=False).encode()
    str(SpecError(found)).encode()
    assert all(len(str(problem.value)) <= 200 and len(problem.message) <= 1000 for problem in found)


def test_all_problems_are_told_at_once() -> None:
    spec = {
        "workload": "nope",
        "budget": {"trials": 0, "seconds": "long"},
        "confirm": {"seeds": 1},
        "name": "",
        "frobnicate": 1,
    }

    fields = {problem.field for problem in problems(spec)}

    assert fields == {"workload", "budget.trials", "budget.seconds", "confirm.seeds", "name", "frobnicate"}


def test_a_number_too_long_to_print_is_refused_like_any_other() -> None:
    huge = 10**5000

    found = problems({"seed": huge, "name": huge, "search": {"lr": huge, "optimizer": huge}, "pruner": huge})

    assert {p.field for p in found} == {"seed", "name", "search.lr", "search.optimizer", "pruner"}
    assert all("bits" in str(problem.value) for problem in found)


def test_one_mistake_makes_one_problem() -> None:
    assert [p.field for p in problems({"search": {"lr": {"low": 1, "high": "x"}}, "sampler": "tpe"})] == [
        "search.lr.high"
    ]


def test_a_flood_of_unknown_keys_is_cut_short() -> None:
    found = problems({f"key{i}": i for i in range(100_000)})

    assert len(found) == 21
    assert "99980 more" in found[-1].message


def test_the_error_as_text_names_field_remedy_and_value() -> None:
    with pytest.raises(SpecError, match=r"^budget\.trials: must be at least 1 .*null for no cap\. \(given: 0\)$"):
        resolve({"budget": {"trials": 0}})
