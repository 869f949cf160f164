"""The examples are valid as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner.spec import resolve
from tuner.spec_text import load_text

ROOT = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted([*ROOT.glob("*.yaml"), *ROOT.glob("*/job.yaml")])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_example_resolves_without_warnings(path: Path) -> None:
    spec = load_text(path.read_text(encoding="utf-8"), path.name)
    if isinstance(spec["workload"], dict):
        spec["workload"] = {**spec["workload"], "folder": str(path.parent)}  # as the command line does

    resolution = resolve(spec)

    assert resolution.warnings == ()
    assert resolution.estimate.trials is not None


def test_there_is_an_example_for_each_kind_of_data_and_of_workload() -> None:
    names = {str(path.relative_to(ROOT)) for path in EXAMPLES}
    assert names >= {"digits.yaml", "byte-lm.yaml", "tabular.yaml", "script/job.yaml", "function/job.yaml"}
