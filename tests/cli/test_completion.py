"""The Tab key: job ids, workloads and formats; silence when the service is away."""

from __future__ import annotations

import time

from tests.cli.support import Cli, Run
from tests.service.support import Service, add_job


def complete(cli: Cli, line: str) -> Run:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    return cli(**words, _X5TUNE_COMPLETE="complete_bash")


def test_job_ids_workloads_and_formats_are_offered(cli: Cli, service: Service) -> None:
    job_id = add_job(service.database)
    assert complete(cli, "x5tune show ").out.split() == [job_id[:13], "last"]
    assert complete(cli, f"x5tune show {job_id[:20]}").out.split() == [job_id]
    assert complete(cli, "x5tune workloads digits-c").out.split() == ["digits-cnn"]
    assert complete(cli, "x5tune export last --format ").out.split() == ["yaml", "json", "args", "env"]
    assert "submit" in complete(cli, "x5tune su").out.split()
    assert "doctor" in complete(cli, "x5tune do").out.split()


def test_without_a_service_there_is_nothing_and_no_wait(lonely_cli: Cli) -> None:
    started = time.monotonic()
    done = complete(Cli(lonely_cli.folder, {"X5TUNE_URL": "http://127.0.0.1:9"}), "x5tune show ")
    assert (done.code, done.out.strip(), done.err) == (0, "", "")
    assert time.monotonic() - started < 5


def test_the_script_can_be_shown(lonely_cli: Cli) -> None:
    done = lonely_cli("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "_X5TUNE_COMPLETE=complete_bash" in done.out
