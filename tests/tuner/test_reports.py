"""From raw reports to points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tuner.records import Point, Value
from tuner.reports import MAX_NAMES, MAX_UNPLACED, ReportBook, UnreadableReportError
from workloads.contract import Fidelity


def book(axis: Any = "samples", maximum: float = 100, reports: int = 4, batch_size: int = 5) -> ReportBook:
    return ReportBook(Fidelity(axis, maximum, reports), "val_loss", batch_size)


def report(step: int, samples: float | None = None, **metrics: float) -> dict[str, Any]:
    message: dict[str, Any] = {"type": "report", "step": step, "metrics": metrics or {"val_loss": 1.0}}
    return message if samples is None else {**message, "samples": samples}


def test_the_index_follows_from_the_position_whatever_the_step() -> None:
    kept = book()

    points = [kept.add(report(step, samples)) for step, samples in ((7, 20), (9, 25), (30, 77), (31, 99), (40, 100))]

    assert [point and (point.index, point.position) for point in points] == [
        None,
        (1, 25.0),
        (3, 77.0),
        None,
        (4, 100.0),
    ]


def test_samples_default_to_step_times_batch_size() -> None:
    assert book().add(report(10)) == Point(2, 50.0, 10, Value(1.0, "finite"))


def test_without_a_batch_size_a_report_has_to_say_its_samples() -> None:
    kept = ReportBook(Fidelity("samples", 100, 4), "val_loss", None)

    assert kept.add(report(10, samples=50)) == Point(2, 50.0, 10, Value(1.0, "finite"))
    with pytest.raises(UnreadableReportError, match="says no samples, and without batch_size"):
        kept.add(report(20))


def test_a_repeated_step_keeps_its_first_value_and_is_counted() -> None:
    kept = book()
    kept.add(report(5, val_loss=1.0))

    assert kept.add(report(5, val_loss=9.0)) is None
    assert kept.last == Point(1, 25.0, 5, Value(1.0, "finite"))
    assert kept.warnings == {"repeated_step": 1}


def test_a_step_behind_the_last_one_takes_its_place_on_the_curve_and_is_counted() -> None:
    kept = book()
    furthest = kept.add(report(15, val_loss=0.5))

    assert kept.add(report(5, val_loss=0.9)) == Point(1, 25.0, 5, Value(0.9, "finite"))
    assert kept.add(report(6, val_loss=0.8)) is None
    assert kept.last == furthest
    assert kept.warnings == {"step_out_of_order": 2}


def test_a_step_that_said_something_else_before_may_still_say_the_metric() -> None:
    kept = book()
    kept.add(report(10, train_loss=1.0))

    assert kept.add(report(10, val_loss=0.5)) == Point(2, 50.0, 10, Value(0.5, "finite"))
    assert not kept.warnings


def test_a_run_whose_horizon_nobody_knows_is_placed_when_it_has_ended() -> None:
    kept = book(maximum=math.inf)

    during = [kept.add(report(step, val_loss=1 / step)) for step in (1, 2, 4, 3, 6, 8)]

    assert during == [None] * 6
    assert [(point.index, point.step) for point in kept.settle()] == [(1, 2), (2, 4), (3, 6), (4, 8)]
    assert kept.last == Point(4, 40.0, 8, Value(0.125, "finite"))


def test_an_unknown_horizon_takes_a_bounded_amount_of_memory_and_keeps_the_last_value() -> None:
    kept = book(maximum=math.inf)
    for step in range(1, 100_001):
        kept.add(report(step, val_loss=1 / step))

    assert len(kept._unplaced) <= MAX_UNPLACED
    points = kept.settle()
    assert [point.index for point in points] == [1, 2, 3, 4]
    assert points[-1].step == 100_000
    assert points[0].step == pytest.approx(25_000, rel=0.01)


@pytest.mark.parametrize("messages", [[], [report(0)], [report(5, samples=0.0)]])
def test_a_run_that_got_nowhere_shows_no_horizon(messages: list[dict[str, Any]]) -> None:
    kept = book(maximum=math.inf)
    for message in messages:
        kept.add(message)

    assert kept.settle() == ()


@pytest.mark.parametrize(("epochs", "positions"), [((0, 1, 2, 3), (1, 2, 3, 4)), ((1, 2, 3, 4), (1, 2, 3, 4))])
def test_epochs_count_from_0_or_from_1(epochs: tuple[int, ...], positions: tuple[int, ...]) -> None:
    kept = book(axis="epochs", maximum=4)

    points = [kept.add({**report(number + 1), "epoch": epoch}) for number, epoch in enumerate(epochs)]

    assert [point and point.position for point in points] == list(positions)


def test_a_report_after_the_last_point_says_that_the_run_goes_on_for_nothing() -> None:
    kept = book()
    kept.add(report(20))
    assert not kept.is_past_the_end

    kept.add(report(21))

    assert kept.is_past_the_end


@pytest.mark.parametrize(("value", "kind"), [(math.nan, "nan"), (math.inf, "+inf"), (-math.inf, "-inf")])
def test_a_value_that_json_cannot_hold_keeps_its_kind(value: float, kind: str) -> None:
    point = book().add(report(5, val_loss=value))

    assert point is not None
    assert point.value == Value(None, kind)  # type: ignore[arg-type]  # parametrized


def test_a_value_that_is_not_finite_is_on_the_curve_even_before_the_first_due_point() -> None:
    kept = book()
    assert kept.add(report(1, val_loss=math.inf)) == Point(1, 5.0, 1, Value(None, "+inf"))


def test_a_report_without_the_metric_makes_no_point_and_its_names_are_remembered() -> None:
    kept = book()

    assert kept.add(report(5, accuracy=0.5, loss=1.0)) is None
    assert kept.last is None
    assert kept.metric_names == ["accuracy", "loss"]


def test_other_metrics_are_health_and_the_latest_counts() -> None:
    kept = book()
    kept.add(report(1, val_loss=3.0, grad_norm=1.0))
    kept.add(report(2, val_loss=2.0, grad_norm=0.5))

    assert kept.health == {"grad_norm": 0.5}


def test_a_probe_cannot_fill_our_memory_with_metric_names() -> None:
    kept = book()
    for step in range(1, 5):
        kept.add(report(step, val_loss=1.0, **{f"m{step}_{n}": 0.0 for n in range(100)}))

    assert len(kept.metric_names) == MAX_NAMES
    assert "val_loss" in kept.metric_names
    assert len(kept.health) < MAX_NAMES


def test_a_single_report_is_due_at_the_end_only() -> None:
    kept = book(reports=1)

    assert kept.add(report(19)) is None
    assert kept.add(report(20)) == Point(1, 100.0, 20, Value(1.0, "finite"))


def test_a_batch_larger_than_the_whole_horizon_makes_the_last_point_at_once() -> None:
    point = book(maximum=3, reports=20, batch_size=64).add(report(1))

    assert point is not None
    assert point.index == 20


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({}, "it has no metrics"),
        ({"step": 1}, "it has no metrics"),
        ({"metrics": {"val_loss": 1.0}}, "it has no step"),
        ({"step": "x", "metrics": {"val_loss": 1.0}}, "'step' is 'x'"),
        ({"step": None, "metrics": {"val_loss": 1.0}}, "'step' is None"),
        ({"step": 5, "metrics": 3}, "metrics is 3"),
        ({"step": 5, "metrics": {"val_loss": "good"}}, "metric 'val_loss' is text: 'good'"),
        ({"step": 5, "metrics": {"val_loss": None}}, "metric 'val_loss' is None"),
        ({"step": 5, "metrics": {"val_loss": [1.0]}}, r"metric 'val_loss' is \[1.0\]"),
        ({"step": 5, "metrics": {"val_loss": 10**400}}, "metric 'val_loss' is 10000"),
        ({"step": 5, "metrics": {"val_loss": 1.0}, "samples": math.nan}, "'samples' is nan"),
        ({"step": 5, "metrics": {"val_loss": 1.0}, "samples": math.inf}, "'samples' is inf"),
        ({"step": 10**400, "metrics": {"val_loss": 1.0}}, "'step' is 10000"),
        ({"step": 1e300, "metrics": {"val_loss": 1.0}}, "'step' is 1e[+]300"),
        ({"step": math.inf, "metrics": {"val_loss": 1.0}}, "'step' is inf"),
    ],
)
def test_a_report_outside_the_protocol_is_refused_by_name(message: dict[str, Any], said: str) -> None:
    with pytest.raises(UnreadableReportError, match=f"cannot be read: {said}"):
        book().add(message)


def test_a_position_below_zero_is_before_the_first_point() -> None:
    assert book().add(report(5, -1e9)) is None


def test_what_comes_beside_the_metric_is_kept_within_bounds() -> None:
    kept = book()
    kept.add({"step": 1, "metrics": {"lr": 0.1, "note": "x" * 5000, "n" * 5000: 1.0, "nested": {"a": [1]}}})

    assert kept.health == {"lr": 0.1, "note": "x" * 200, "n" * 200: 1.0}
    assert max(map(len, kept.metric_names)) == 200
