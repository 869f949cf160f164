"""`suggest`: a search to paste, without a service."""

from __future__ import annotations

import yaml

from tests.cli.support import Cli
from tuner.spec import resolve


def test_what_is_printed_is_a_search_that_a_job_takes(lonely_cli: Cli) -> None:
    done = lonely_cli("suggest", "--parameters", "124e6", "--tokens", "2.5e9", "--sample-tokens", "512")
    assert done.code == 0, done.err
    assert "arXiv 2503.04715" in done.out
    job = resolve({"workload": "byte-lm", **yaml.safe_load(done.out)}).job
    assert set(job.searched) == {"lr", "batch_size", "weight_decay"}
    assert job.baseline["batch_size"] in (128, 256, 512)


def test_the_batch_that_is_given_is_kept_and_json_tells_the_same(lonely_cli: Cli) -> None:
    told = lonely_cli("suggest", "--parameters", "124e6", "--tokens", "2.5e9", "--batch-size", "100", "--json").json
    assert told["batch_size"] == 100
    assert told["batch_tokens"] == 100 * 1024
    assert told["lr_range"][0] < told["lr"] < told["lr_range"][1]


def test_what_no_rule_covers_is_bad_usage(lonely_cli: Cli) -> None:
    done = lonely_cli("suggest", "--parameters", "124e6", "--tokens", "2.5e9", "--optimizer", "lamb")
    assert done.code == 2
    assert "lamb" in done.err
