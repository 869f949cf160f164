"""Recipes as text to paste."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.export import ExportError, export
from tuner.spec_text import load_text

PARAMETERS: dict[str, Any] = {
    "lr": 1e-05,
    "batch_size": 64,
    "grad_clip": None,
    "warmup": {"steps": 40, "start": 1e-07},
    "loss_scale": "auto",
    "optimizer": "adamw",
    "use_bias": True,
    "tied": False,
    "shift": -1e-05,
    "label": "it's 1e-5",
}
DERIVED = {"micro_batch": 32, "accumulation": 2, "loss_scale": 2048.0}
CONTEXT = {"recipe": "0190", "status": "proven", "evidence": "0.1 better\nlr: 99"}
MERGED = {**PARAMETERS, **DERIVED}


def exported(format: str) -> str:  # noqa: A002
    return export(PARAMETERS, DERIVED, format, context=CONTEXT)


def test_yaml_reads_back_exactly_by_our_reader_and_by_yaml_1_1() -> None:
    text = exported("yaml")

    assert load_text(text, "recipe.yaml") == MERGED
    assert yaml.safe_load(text) == MERGED


def test_yaml_begins_with_where_it_comes_from_and_keeps_each_in_one_comment() -> None:
    assert exported("yaml").splitlines()[:3] == ["# recipe: 0190", "# status: proven", "# evidence: 0.1 better lr: 99"]


def test_json_keeps_context_parameters_and_derived_apart() -> None:
    assert json.loads(exported("json")) == {**CONTEXT, "parameters": PARAMETERS, "derived": DERIVED}


def test_args_are_one_shell_line_with_null_left_out() -> None:
    words = shlex.split(exported("args"))

    assert words[:4] == ["--lr", "1e-05", "--batch-size", "64"]
    assert "--grad-clip" not in words
    assert "--use-bias" in words
    assert "--no-tied" in words
    assert "--shift=-1e-05" in words
    assert words[words.index("--loss-scale") + 1] == "2048.0"
    assert words[words.index("--label") + 1] == "it's 1e-5"
    assert json.loads(words[words.index("--warmup") + 1]) == {"steps": 40, "start": 1e-07}


def test_env_is_one_quoted_assignment_a_line() -> None:
    lines = dict(shlex.split(line)[0].split("=", 1) for line in exported("env").splitlines())

    assert lines["X5TUNE_LR"] == "1e-05"
    assert lines["X5TUNE_GRAD_CLIP"] == ""
    assert (lines["X5TUNE_USE_BIAS"], lines["X5TUNE_TIED"]) == ("true", "false")
    assert lines["X5TUNE_LABEL"] == "it's 1e-5"
    assert len(lines) == len(MERGED)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_are_exact_in_every_format(number: float) -> None:
    texts = {name: export({"lr": number}, {}, name, context={}) for name in ("yaml", "json", "args", "env")}

    assert load_text(texts["yaml"], "x")["lr"] == yaml.safe_load(texts["yaml"])["lr"] == number
    assert json.loads(texts["json"])["parameters"]["lr"] == number
    assert float(shlex.split(texts["args"])[-1].removeprefix("--lr=")) == number
    assert float(texts["env"].strip().split("=")[1].strip("'")) == number


@settings(deadline=None)
@given(st.text())
def test_no_context_can_break_out_of_its_comment(evidence: str) -> None:
    assert load_text(export({"lr": 1.0}, {}, "yaml", context={"evidence": evidence}), "x") == {"lr": 1.0}


def test_a_recipe_without_parameters_is_still_a_mapping() -> None:
    assert load_text(export({}, {}, "yaml", context={}), "x") == {}


def test_an_unknown_format_lists_the_valid_ones() -> None:
    with pytest.raises(ExportError, match="'toml'; use one of yaml, json, args, env"):
        exported("toml")


@pytest.mark.parametrize("name", ["hf", "lightning", "accelerate", "deepspeed", "torchrun"])
def test_formats_of_trainers_are_not_available_yet(name: str) -> None:
    with pytest.raises(ExportError, match="not available yet"):
        exported(name)


@pytest.mark.parametrize("format", ["yaml", "json", "args", "env"])
def test_a_loss_scale_that_own_code_does_not_have_is_left_out(format: str) -> None:  # noqa: A002
    text = export({"lr": 0.1}, {"micro_batch": 8, "loss_scale": "auto"}, format, context={})

    assert "scale" not in text.lower()
    assert "micro" in text.lower()
