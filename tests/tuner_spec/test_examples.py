"""The examples are valid as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.spec import resolve
from tuner.spec_text import load_text

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_resolves_without_warnings(path: Path) -> None:
    resolution = resolve(load_text(path.read_text(encoding="utf-8"), path.name))

    assert resolution.warnings == ()
    assert resolution.estimate.trials is not None


def test_there_is_an_example_for_each_kind_of_data() -> None:
    assert {path.name for path in EXAMPLES} >= {"digits.yaml", "byte-lm.yaml", "tabular.yaml"}
