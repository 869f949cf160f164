"""`bench.real --out` goes on where it was stopped: a search in the file is made again only for another compute."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import real


def lines_after(monkeypatch: pytest.MonkeyPatch, out: Path, *given: str) -> list[str]:
    fixed = ["bench.real", "--workloads", "digits-cnn", "--methods", "random", "--fresh", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*fixed, *given])
    assert real.main() == 0
    return out.read_text().splitlines()


def test_only_missing_searches_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "searches"
    first = lines_after(monkeypatch, out, "--full-runs", "0.01", "--seeds", "1")
    assert len(first) == 1
    more_seeds = lines_after(monkeypatch, out, "--full-runs", "0.01", "--seeds", "2")
    assert more_seeds[:1] == first
    assert [json.loads(line)["seed"] for line in more_seeds] == [0, 1]
    more_runs = lines_after(monkeypatch, out, "--full-runs", "0.02", "--seeds", "1")
    assert more_runs[:2] == more_seeds
    assert [json.loads(line)["full_runs"] for line in more_runs] == [0.01, 0.01, 0.02]
