"""Specifications as text, and `--set` on top."""

from __future__ import annotations

import time

import pytest

from tuner.spec_problems import SpecError
from tuner.spec_text import SpecTextError, apply_set, load_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5),
        ("'1e-5'", "1e-5"),
        ("010", 10),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("-.5", -0.5),
        (".inf", float("inf")),
        ("on", "on"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("", None),
        ("2026-01-01", "2026-01-01"),
        ("[a, 1]", ["a", 1]),
        ("{b: {c: null}}", {"b": {"c": None}}),
        ("!!str 5", "5"),
    ],
)
def test_yaml_is_read_by_the_rules_of_yaml_1_2(text: str, value: object) -> None:
    assert load_text(f"a: {text}\n", "job.yaml") == {"a": value}


def test_json_is_read_as_json() -> None:
    assert load_text('\ufeff{"a": 1e-5,\t"b": "\\ud83d\\ude00"}', "job.json") == {"a": 1e-5, "b": "😀"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n", "mapping"),
        ("just text", "mapping"),
        ("a: [1, 2\n", "job.yaml, line 2, column 1: .*not closed"),
        ('{"a": [1, 2}', "line 1, column 12"),
        ("a: 1\n b: 2\n", "line 2, column 3"),
        ("a: b: c", "line 1, column 5: A second ':'"),
        ("\tlr: 1", "line 1, column 1: .*spaces"),
        ("a: 1\n---\nb: 2\n", "line 2, column 1: A second document"),
        ("a: 1\nb: 2\na: 3\n", "line 3, column 1: The key 'a' is given twice"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ("x: {lr: 1, lr: 2}", "line 1, column 12: The key 'lr' is given twice"),
        ("a: &x [1]\nb: *x\n", "line 1, column 4: Aliases"),
        ("a: *x\n", "line 1, column 4: Aliases"),
        ("1: a\n", "not text"),
        ("? [a]\n: b\n", "not text"),
        ("a: !!python/object/apply:os.system [ls]", "line 1, column 4: The tag"),
        ("a: !mine 5", "The tag"),
        ("a: \x00", r"U\+0000"),
        ("[" * 10_000, "more than 50 levels"),
        ("{" * 100_000, "more than 50 levels"),
        ("- " * 10_000, "more than 50 levels"),
        ("#" * (1024 * 1024 + 1), "larger than 1 MiB"),
        ("é" * (600 * 1024), "larger than 1 MiB"),
    ],
)
def test_text_that_is_no_specification_is_refused_with_the_place(text: str, message: str) -> None:
    with pytest.raises(SpecTextError, match=message) as caught:
        load_text(text, "job.yaml")

    assert str(caught.value).startswith("job.yaml")
    assert isinstance(caught.value, SpecError)


def test_an_error_carries_line_and_column() -> None:
    with pytest.raises(SpecTextError) as caught:
        load_text("a: 1\nb: [", "job.yaml")

    assert (caught.value.source, caught.value.line, caught.value.column) == ("job.yaml", 2, 5)


def test_a_huge_flat_list_is_refused_before_it_costs_many_seconds() -> None:
    began = time.monotonic()

    with pytest.raises(SpecTextError, match="More than 50000 values"):
        load_text("a: [" + ",".join("1" * 500_000) + "]", "job.yaml")

    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("search.lr.high=1e-1", {"search": {"lr": {"low": 1, "high": 0.1}}}),
        ("search.lr={low: 1e-5, high: 1e-2, log: true}", {"search": {"lr": {"low": 1e-5, "high": 1e-2, "log": True}}}),
        ("name=a=b", {"search": {"lr": {"low": 1}}, "name": "a=b"}),
        ("budget.trials = 3", {"search": {"lr": {"low": 1}}, "budget": {"trials": 3}}),
        ("search=", {"search": None}),
        ("metrics.csv={run_dir}/m.csv", {"search": {"lr": {"low": 1}}, "metrics": {"csv": "{run_dir}/m.csv"}}),
        (
            r"metrics.stdout=#(\d+) loss: [0-9]",
            {"search": {"lr": {"low": 1}}, "metrics": {"stdout": r"#(\d+) loss: [0-9]"}},
        ),
        ("metrics.stdout='it: (.*)'", {"search": {"lr": {"low": 1}}, "metrics": {"stdout": "it: (.*)"}}),
        ("metrics.stdout=null", {"search": {"lr": {"low": 1}}, "metrics": {"stdout": None}}),
        ("metrics={jsonl: a}", {"search": {"lr": {"low": 1}}, "metrics": {"jsonl": "a"}}),
    ],
)
def test_set_changes_one_value(assignment: str, expected: object) -> None:
    spec: dict[str, object] = {"search": {"lr": {"low": 1}}}

    assert apply_set(spec, assignment) == expected
    assert spec == {"search": {"lr": {"low": 1}}}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("search.lr", "no '='"),
        ("=1", "names joined by single dots"),
        ("search..lr=1", "names joined by single dots"),
        ("search.lr.low.x=1", "search.lr.low is 1, not a mapping"),
        ("a=[1", "not closed"),
    ],
)
def test_set_says_what_is_wrong_with_it(assignment: str, message: str) -> None:
    with pytest.raises(SpecTextError, match=message):
        apply_set({"search": {"lr": {"low": 1}}}, assignment)
