"""Published scaling rules: their figures, how they follow the batch, and what they refuse."""

from __future__ import annotations

import math

import pytest

from tuner.scaling_rules import MARGIN, NoRuleError, deepseek, kaplan, step_law, suggest


def test_the_rules_give_the_figures_of_their_papers() -> None:
    # Worked out by hand from the equations.
    assert kaplan(1e9).lr == pytest.approx(3.5e-4, rel=0.05)
    assert deepseek(1e9, 1e9).lr == pytest.approx(1.4e-3, rel=0.05)
    assert deepseek(1e9, 1e9).batch_tokens == pytest.approx(4.05e5, rel=0.05)
    assert step_law(1e9, 1e11).lr == pytest.approx(1.6e-3, rel=0.05)
    assert step_law(1e9, 1e11).batch_tokens == pytest.approx(1.1e6, rel=0.05)


def test_the_centre_lies_among_the_rules_and_the_range_a_margin_around_them() -> None:
    found = suggest(124e6, 2.5e9)
    rates = [rule.at(found.batch_tokens) for rule in found.rules]
    assert min(rates) < found.lr < max(rates)
    assert found.lr_range == pytest.approx((min(rates) / MARGIN, max(rates) * MARGIN))


def test_four_times_the_batch_takes_twice_the_rate() -> None:
    small, large = suggest(124e6, 2.5e9, batch_tokens=1e5), suggest(124e6, 2.5e9, batch_tokens=4e5)
    assert large.lr == pytest.approx(2 * small.lr)


def test_the_timescale_is_batch_over_rate_decay_and_tokens() -> None:
    found = suggest(124e6, 2.5e9, batch_tokens=5e5)
    assert found.timescale == pytest.approx(5e5 / (found.lr * found.weight_decay * 2.5e9))


def test_what_is_smaller_than_any_fit_or_far_from_the_best_batch_is_said() -> None:
    assert any("Smaller" in note for note in suggest(1e6, 1e7).notes)
    assert any("guess" in note for note in suggest(124e6, 2.5e9, batch_tokens=1e7).notes)
    assert len(suggest(124e6, 2.5e9).notes) == 1


def test_adafactor_has_a_relative_rate_whatever_the_size() -> None:
    assert suggest(1e8, 1e9, "adafactor").lr == suggest(1e9, 1e10, "adafactor").lr


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((-1.0, 1e9), ["parameters", "-1"]),
        ((1e8, math.nan), ["tokens", "nan"]),
        ((1e8, 1e9, "adam"), ["optimizer", "adam", "adamw"]),
        ((1e8, 1e9, "lamb"), ["optimizer", "lamb", "1e-3 to 3e-2"]),
        ((1e8, 1e9, "adamw", 1e10), ["batch_tokens", "1e+10", "smaller"]),
        ((1e12, 1e13), ["parameters", "1e+12"]),
    ],
)
def test_what_no_rule_covers_is_refused_by_name_value_and_remedy(
    arguments: tuple[float, float], names: list[str]
) -> None:
    with pytest.raises(NoRuleError) as caught:
        suggest(*arguments)
    assert all(name in str(caught.value) for name in names)
