"""A command with placeholders: filled argument by argument, without a shell."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.command import TemplateError, command_label, fill, placeholders, without


@pytest.mark.parametrize(
    ("argument", "values", "filled"),
    [
        ("{lr}", {"lr": 1e-05}, "1e-05"),
        ("{lr}", {"lr": 0.1 + 0.2}, "0.30000000000000004"),
        ("--lr={lr}", {"lr": 1.0}, "--lr=1.0"),
        ("{n}", {"n": 64}, "64"),
        ("{a}x{b}", {"a": 1, "b": 2}, "1x2"),
        ("{flag}", {"flag": True}, "true"),
        ("{flag}", {"flag": False}, "false"),
        ("{none}", {"none": None}, ""),
        ("{words}", {"words": "a b; $(rm -rf /) 'c'"}, "a b; $(rm -rf /) 'c'"),
        ("{layers}", {"layers": [64, None, True, "é"]}, '[64, null, true, "é"]'),
        ("{warmup}", {"warmup": {"steps": 40}}, '{"steps": 40}'),
        ("{{lr}}", {}, "{lr}"),
        ("{{{lr}}}", {"lr": 2}, "{2}"),
        ('{{"lr": {lr}}}', {"lr": 2}, '{"lr": 2}'),
        ("{again}", {"again": "{lr}", "lr": 2}, "{lr}"),
        ("", {}, ""),
    ],
)
def test_a_placeholder_is_filled_as_text(argument: str, values: dict[str, Any], filled: str) -> None:
    assert fill([argument], values) == [filled]


@pytest.mark.parametrize("argument", ["{", "}", "{}", "{lr", "lr}", "{l r}", "{lr:.3f}", "{0}", "{a.b}", '{"lr": 1}'])
def test_braces_that_are_no_placeholder_are_refused_with_how_to_write_them(argument: str) -> None:
    with pytest.raises(TemplateError, match=r"\{\{ and \}\}"):
        placeholders(argument)


def test_a_placeholder_without_a_value_is_refused_with_those_that_have_one() -> None:
    with pytest.raises(TemplateError, match=r"\{rate\}.*there are: lr, seed"):
        fill(["--lr={rate}"], {"lr": 1, "seed": 2})


def test_placeholders_come_in_their_order() -> None:
    assert placeholders("{b}-{a}-{{c}}-{b}") == ["b", "a", "b"]


@settings(deadline=None)
@given(st.text())
def test_doubled_braces_make_any_text_literal(text: str) -> None:
    assert fill([text.replace("{", "{{").replace("}", "}}")], {}) == [text]


@settings(deadline=None)
@given(st.lists(st.text(), min_size=1))
def test_as_many_arguments_come_out_as_went_in(values: list[str]) -> None:
    names = [f"p{index}" for index in range(len(values))]

    assert fill([f"{{{name}}}" for name in names], dict(zip(names, values, strict=True))) == values


def test_a_real_process_gets_each_value_whole() -> None:
    show = "import json, sys; print(json.dumps(sys.argv[1:]))"
    argv = fill([sys.executable, "-c", show, "--note={note}", "{none}"], {"note": "a 'b' $HOME\n*", "none": None})

    done = subprocess.run(argv, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == '["--note=a \'b\' $HOME\\n*", ""]'


@pytest.mark.parametrize(
    ("argv", "label"),
    [
        (["python", "train.py", "--lr", "{lr}"], "python train.py"),
        (["/env/bin/python3", "-u", "src/train.py"], "python3 train.py"),
        (["torchrun", "--nproc-per-node=2", "train.py"], "torchrun train.py"),
        (["python", "-m", "pkg.train", "x.py"], "python -m pkg.train"),
        (["./run.sh", "{lr}"], "run.sh"),
        (["make", "train"], "make train"),
        (["uv", "run", "train.py"], "uv train.py"),
        (["a\nb"], "a b"),
        (["/"], "/"),
        (["x" * 500], "x" * 200),
    ],
)
def test_a_command_is_shown_by_its_program_and_script(argv: list[str], label: str) -> None:
    assert command_label(argv) == label


@pytest.mark.parametrize(
    ("argv", "left"),
    [
        (["x", "--w", "{w}", "--lr", "{lr}"], ["x", "--lr", "{lr}"]),
        (["x", "--w={w}", "-v", "w-{w}"], ["x", "-v"]),
        (["x", "-1", "{w}"], ["x", "-1"]),
        (["x", "--lr={lr}", "{w}"], ["x", "--lr={lr}"]),
        (["x", "--a", "{w}", "{v}"], ["x"]),
        (["x", "--a", "{w}", "--b", "{v}"], ["x"]),
        (["{{w}}", "w"], ["{{w}}", "w"]),
    ],
)
def test_the_arguments_of_what_does_not_exist_are_left_out_with_their_options(argv: list[str], left: list[str]) -> None:
    assert without(argv, {"lr": 0.1}) == left
