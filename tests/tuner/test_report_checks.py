"""What curves and the place of the best trial say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from tuner.edges import edge_of_space
from tuner.jobspec import Choices, Parameter, Range
from tuner.report_checks import from_reports

SPACE: dict[str, Parameter] = {
    "lr": Range(1e-4, 1.0, log=True),
    "weight_decay": Range(1e-5, 0.3, log=True, or_zero=True),
    "batch_size": Choices((16, 32)),
}


@pytest.mark.parametrize(
    ("best", "on_edge"),
    [
        ({"lr": 0.01, "weight_decay": 0.01, "batch_size": 16}, []),
        ({"lr": 0.99, "weight_decay": 0.01, "batch_size": 32}, ["lr"]),
        ({"lr": 1.1e-4, "weight_decay": 1e-5, "batch_size": 32}, ["lr", "weight_decay"]),
        ({"lr": 0.01, "weight_decay": 0.0}, []),
    ],
)
def test_the_best_on_the_edge_of_its_range_is_told(best: dict[str, Any], on_edge: list[str]) -> None:
    finding = edge_of_space(SPACE, best)
    assert list(finding.evidence if finding else {}) == on_edge


@pytest.mark.parametrize(
    ("curves", "direction", "codes"),
    [
        ([[1.0, 0.5, 0.3], [1.0, 0.7, 0.6]], "minimize", []),
        ([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], "minimize", ["metric_constant"]),
        ([[1.0, 0.5, 0.3], [0.9, 0.6, 0.3], [0.8, 0.5, 0.3]], "minimize", ["parameters_ignored"]),
        ([[1.0, 1.5, 1.3], [1.0, 1.7, 1.6]], "minimize", ["does_not_learn"]),
        ([[1.0, 1.5, 1.3], [1.0, 1.7, 1.6]], "maximize", []),
        ([], "minimize", []),
    ],
)
def test_curves_alone_show_some_mistakes(
    curves: Sequence[Sequence[float]], direction: Literal["minimize", "maximize"], codes: list[str]
) -> None:
    trials = [({"lr": 0.1 / (number + 1)}, curve) for number, curve in enumerate(curves)]
    assert [finding.code for finding in from_reports(trials, "val_loss", direction)] == codes
