"""A user's class, as its source shows it where jobs are submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tuner_spec.test_own_code import assert_refused, warned
from tests.tuner_spec.test_own_code import problems as problems_of
from tuner.jobspec import Choices, Condition, Fixed, Range
from tuner.spec import Resolution, resolve

METHODS = """
    def model(self, config): ...
    def train_data(self): ...
    def eval_data(self): ...
    def loss(self, model, batch): ...
    def evaluate(self, model, data): ...
"""
WIDTH = 'parameters = {"width": {"low": 8, "high": 64, "log": True, "int": True}, "act": "gelu", "dropout": 0.1}'


def spec(folder: Path, body: str = "pass", before: str = "", **keys: Any) -> dict[str, Any]:
    """A job on a class with all methods and `body`."""
    (folder / "train.py").write_text(f"{before}\nclass Digits:\n    {body}\n{METHODS}")
    workload = {"python": "train.py:Digits", "folder": str(folder)}
    return {"workload": workload, "fidelity": {"max": 1000}, **keys}


def resolved(folder: Path, body: str = "pass", before: str = "", **keys: Any) -> Resolution:
    return resolve(spec(folder, body, before, **keys))


def test_a_class_has_the_parameters_of_the_loop_and_searches_what_the_built_ins_do(tmp_path: Path) -> None:
    job = resolved(tmp_path).job

    assert set(job.searched) == {"lr", "batch_size", "weight_decay"}
    assert job.space["grad_clip"] == Fixed(1.0)
    assert (job.baseline["lr"], job.baseline["batch_size"]) == (1e-3, 64)
    assert job.fidelity.axis == "samples"
    assert resolve(job.to_json()).job == job


def test_a_class_declares_its_own_parameters_with_a_default_or_a_range(tmp_path: Path) -> None:
    job = resolved(tmp_path, WIDTH, search={"act": {"choices": ["gelu", "relu"]}}).job

    assert job.space["width"] == Range(8, 64, log=True, integer=True)
    assert job.space["act"] == Choices(("gelu", "relu"))
    assert job.space["dropout"] == Fixed(0.1)
    assert job.baseline["act"] == "gelu"


def test_a_class_may_give_the_loops_parameters_other_defaults(tmp_path: Path) -> None:
    body = (
        'parameters = {"batch_size": 32, "lr": {"low": 1e-3, "high": 1.0, "log": True}, "grad_clip": {"relative": 2}}'
    )

    job = resolved(tmp_path, body).job

    assert job.space["batch_size"] == Fixed(32)
    assert job.space["lr"] == Range(1e-3, 1.0, log=True)
    assert job.space["grad_clip"] == Fixed({"relative": 2.0})


def test_a_parameter_of_a_class_may_exist_only_beside_a_value_of_another(tmp_path: Path) -> None:
    heads = '"heads": {"choices": [1, 2, 4], "when": {"kind": "attention"}}'
    body = f'parameters = {{"kind": {{"choices": ["dense", "attention"]}}, {heads}}}'

    job = resolved(tmp_path, body).job

    assert job.space["heads"] == Choices((1, 2, 4), when=Condition("kind", ("attention",)))
    assert job.baseline["kind"] == "dense"
    assert "heads" not in job.baseline
    assert resolve(job.to_json()).job == job
    assert resolved(tmp_path, body, baseline={"kind": "attention"}).job.baseline["heads"] == 1
    assert_refused(spec(tmp_path, body, baseline={"heads": 2}), "baseline.heads", "leave it out")
    lr = {"low": 0.1, "high": 1, "when": {"kind": "dense"}}
    assert_refused(spec(tmp_path, body, search={"lr": lr}), "search.lr.when", "training loop needs")


def test_the_searched_baseline_values_that_are_not_the_users_are_named(tmp_path: Path) -> None:
    warning = warned(resolved(tmp_path, baseline={"lr": 0.01, "weight_decay": 0}))["baseline"]

    assert "batch_size = 64" in warning
    assert "lr" not in warning


def test_a_loss_scale_that_changes_nothing_is_a_warning_because_the_loop_is_ours(tmp_path: Path) -> None:
    search = {"loss_scale": {"low": 128, "high": 65536, "log": True}}

    assert "no effect with bf16" in warned(resolved(tmp_path, search=search, precision="bf16"))["search.loss_scale"]


def test_a_base_class_in_the_same_file_counts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"class Base:\n    {WIDTH}\n{METHODS}\nclass Digits(Base):\n    pass\n")
    workload = {"python": "train:Digits", "folder": str(tmp_path)}

    assert "width" in resolve({"workload": workload, "fidelity": {"max": 1000}}).job.searched


def test_a_class_whose_base_is_elsewhere_takes_any_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from base import Base\nclass Digits(Base):\n    pass\n")
    workload = {"python": "train.py:Digits", "folder": str(tmp_path)}

    job = resolve({"workload": workload, "fidelity": {"max": 1000}, "search": {"lr": 0.1, "batch_size": 8, "w": 3}}).job

    assert set(job.space) == {"lr", "batch_size", "w"}


def test_tokens_need_a_class_that_counts_them(tmp_path: Path) -> None:
    tokens = {"axis": "tokens", "max": 1000}

    assert resolved(tmp_path, "tokens_per_sample = 4", fidelity=tokens).job.fidelity.axis == "tokens"
    assert_refused(spec(tmp_path, fidelity=tokens), "fidelity.axis", "tokens_per_sample in the class Digits")


@pytest.mark.parametrize(
    ("body", "keys", "field", "part"),
    [
        (WIDTH, {"search": {"widht": 3}}, "search.widht", "Did you mean width?"),
        (WIDTH, {"search": {"width": {"low": 8, "high": 4, "int": True}}}, "search.width.low", "low must be below"),
        (WIDTH, {"baseline": {"dropout": 2}}, "baseline.dropout", "0.95"),
        ("pass", {"search": {"dropout": 0.1}}, "search.dropout", "There is no parameter"),
        ("pass", {"search": {"lr": -1}}, "search.lr", "above 0"),
        ("pass", {"fidelity": None}, "fidelity.max", "is missing"),
        ("pass", {"metrics": {"stdout": "x"}}, "metrics", "commands only"),
        ("parameters = make()", {}, "workload.python", "parameters of Digits is computed"),
        ("parameters = ['width']", {}, "workload.python", "must be a mapping"),
        ("parameters = {3: 1}", {}, "workload.python", "use an identifier"),
        ("parameters = {'seed': 1}", {}, "workload.python", "every run gets its own"),
        ("parameters = {'w': {'low': 1}}", {}, "workload.python.parameters.w.high", "is missing"),
        ("parameters = {'lr': 'high'}", {}, "workload.python.parameters.lr", "number"),
        ("parameters = {'w': {'a': 1}}", {}, "workload.python.parameters.w.a", "There is no key"),
    ],
)
def test_a_mistake_is_refused_alone_with_its_field_and_a_remedy(
    tmp_path: Path, body: str, keys: dict[str, Any], field: str, part: str
) -> None:
    found = problems_of(spec(tmp_path, body, **keys))

    assert all(problem.field.startswith(field.rpartition(".")[0] or field) for problem in found), found
    assert any(problem.field == field and part in problem.message for problem in found), found


def test_a_class_without_a_method_is_refused_with_those_that_it_needs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("class Digits:\n    def model(self, config): ...\n    loss = None\n")
    workload = {"python": "train.py:Digits", "folder": str(tmp_path)}

    (problem,) = problems_of({"workload": workload, "fidelity": {"max": 1000}})

    assert problem.field == "workload.python"
    assert "Digits has no train_data, eval_data, evaluate; a class" in problem.message


def test_nothing_of_the_users_runs_where_jobs_are_submitted(tmp_path: Path) -> None:
    resolved(tmp_path, before="raise SystemExit('imported')")


@pytest.mark.parametrize("text", ["class Digits(", "Digits = make()", "\0", ""])
def test_a_source_that_shows_no_class_is_left_to_the_import(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    workload = {"python": "train.py:Digits", "folder": str(tmp_path)}

    assert resolve({"workload": workload, "search": {"w": 1}, "fidelity": {"max": 10}}).job.code is not None
