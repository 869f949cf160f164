"""The recommender's batch and accumulation under its memory limit, in both readings."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.examples.test_own_training import EXAMPLES, service, x5tune

__all__ = ["service"]

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

JOB = str(EXAMPLES / "recommender" / "job.yaml")
SMALL = ("--set", "confirm.seeds=0", "--set", "fidelity.max=2048")
LIMIT_BYTES = 480 * 2**20


def test_accumulation_reaches_what_a_batch_in_one_piece_does_not_fit(service: Mapping[str, str]) -> None:
    run = x5tune(service, "submit", JOB, *SMALL, "--watch")
    assert run.returncode == 0, run.stdout + run.stderr

    trials = json.loads(x5tune(service, "trials", "last", "--json").stdout)["items"]
    effective = [trial["parameters"]["at_once"] * trial["parameters"]["accumulate"] for trial in trials]
    assert sorted(effective) == [64, 256, 256, 1024]
    assert [trial["outcome"] for trial in trials] == ["ok"] * 4
    assert all(0 < trial["memory"]["peak_bytes"] < LIMIT_BYTES for trial in trials)
    assert all("samples/s" in trial["log_tail"] for trial in trials)

    whole = x5tune(service, "submit", JOB, *SMALL, "--set", "search.at_once={choices: [64, 1024]}", "--watch")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    trials = json.loads(x5tune(service, "trials", "last", "--json").stdout)["items"]
    outcomes = {(trial["parameters"]["at_once"], trial["outcome"]) for trial in trials}
    assert outcomes == {(64, "ok"), (1024, "out_of_memory")}
