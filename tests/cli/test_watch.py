"""Following a job: line by line, as JSON, on a terminal, through interruptions."""

from __future__ import annotations

import json
import signal
from dataclasses import replace

import pytest

from tests.cli.support import Cli, claimed, confirm, finished_job, job_of, run_trials
from tests.service.support import Service, add_job, confirmation, recipe, result
from tuner.records import Finding, Outcome, Phase, StopReason, Value
from x5tune import watching
from x5tune.errors import Unreachable


def test_a_pipe_gets_one_line_for_each_thing_worth_saying(cli: Cli, service: Service) -> None:
    finished_job(service.database)
    done = cli("watch", "last")
    assert done.code == 0, done.err
    lines = [line[10:] for line in done.out.splitlines() if line[2:3] == ":"]
    assert lines == [
        "queued",
        "running",
        "search: up to 5 trials",
        "trial 0 (baseline): ok, 0.5",
        "trial 1: ok, 0.3, the best so far, 40 % better than the baseline",
        "trial 2: diverged (val_loss at step 2 is inf)",
        "trial 3: pruned, 0.9 (behind the others)",
        "trial 4: crashed (ValueError: [red]no[/red] data)",
        "confirm: 4 runs of the finalists and the baseline",
        "confirmation 1 of 4: the baseline, 0.5",
        "confirmation 2 of 4: trial 1, 0.3",
        "confirmation 3 of 4: the baseline, 0.5",
        "confirmation 4 of 4: trial 1, 0.3",
        "proven: the recipe of trial 1, 0.3",
    ]
    for text in ("Recommended: trial 1, proven.", "all trials of the budget", "+0.2 (40 %)", "x5tune export"):
        assert text in done.out


def test_json_is_one_event_a_line_and_the_job_at_the_end(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    done = cli("watch", job_id, "--json")
    documents = [json.loads(line) for line in done.out.splitlines()]
    assert [event["id"] for event in documents[:-1]] == list(range(1, len(documents)))
    assert documents[-2]["type"] == "end"
    assert documents[-1] == cli("show", job_id, "--json").json


def test_a_failed_job_ends_with_1_and_its_error(cli: Cli, service: Service) -> None:
    failed = result(
        StopReason.FAILURES, verdict=None, recipes=[], diagnosis=[], failed=True, error="5 crashed in a row"
    )
    finished_job(service.database, failed)
    done = cli("watch", "last")
    assert done.code == 1
    assert "The job failed." in done.out
    assert "5 crashed in a row" in done.out


def test_no_recommendation_is_a_good_end_with_a_diagnosis(cli: Cli, service: Service) -> None:
    finding = Finding("baseline_is_best", "Nothing was better.", {}, "Keep the baseline.")
    finished_job(service.database, result(verdict="no_recommendation", recipes=[], diagnosis=[finding]))
    done = cli("watch", "last")
    assert done.code == 0
    assert "No recommendation." in done.out
    assert "→ Keep the baseline." in done.out


def test_a_cancelled_job_ends_with_1(cli: Cli, service: Service) -> None:
    add_job(service.database)
    cli("cancel", "last")
    done = cli("watch", "last")
    assert (done.code, "The job was cancelled." in done.out) == (1, True)


def test_submit_and_watch_in_one(cli: Cli, service: Service) -> None:
    with cli.running("submit", "-w", "quadratic", "--watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("queued\n")
        assert "waiting: No runner is connected" in process.stdout.readline()
        assert cli("cancel", "last").code == 0
        assert "The job was cancelled." in process.stdout.read()
        assert process.wait(20) == 1


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ctrl_c_stops_watching_and_not_the_job(cli: Cli, service: Service, more: tuple[str, ...]) -> None:
    job_id = add_job(service.database)
    with cli.running("watch", job_id, *more) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"x5tune watch {job_id[:13]}" in err
    assert "Traceback" not in out + err
    assert cli("show", job_id, "--json").json["state"] == "queued"


def test_giving_up_on_a_lost_service_says_how_to_come_back(
    service: Service, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_job(service.database)

    def give_up(*_: object, **__: object) -> None:
        raise Unreachable(service.url, "nothing listens there.")

    monkeypatch.setattr(watching, "follow", give_up)
    done = replace(cli, is_inside=True)("watch", job_id)
    assert done.code == 3
    assert f"Cannot reach the x5tune service at {service.url}" in done.err
    assert f"goes on as soon as its service does. Come back with: x5tune watch {job_id[:13]}" in done.err


def test_a_confirmation_that_failed_says_why(cli: Cli, service: Service) -> None:
    recorder = claimed(service.database)
    run_trials(recorder)
    recorder.phase_started(Phase.CONFIRM, 2)
    failed = replace(confirmation(0, 1), outcome=Outcome.CRASHED, reason="ValueError: [no] data", value=Value.of(None))
    recorder.confirmation_ended(failed)
    recorder.finish(result(diagnosis=[], recipes=[]))
    assert "confirmation 1 of 2: the baseline, crashed (ValueError: [no] data)" in cli("watch", "last").out


@pytest.mark.parametrize("columns", [60, 120])
def test_a_terminal_shows_where_the_job_stands(cli: Cli, service: Service, columns: int) -> None:
    recorder = claimed(service.database, name="Nächte [red]x[/red]")
    run_trials(recorder)
    with cli.on_terminal("watch", "last", columns=columns) as terminal:
        terminal.read_until("1 crashed")
        for text in ("Nächte [red]x[/red]", "running: search", "5/5 trials", "40 % better", "Ctrl-C stops watching"):
            terminal.read_until(text)
        confirm(recorder)
        terminal.read_until("4/4 runs")
        recorder.finish(result(diagnosis=[], recipes=[recipe(1)]))
        assert terminal.read_to_end() == 0
    assert "Recommended: trial 1, proven." in terminal.text
    assert max(len(line) for line in terminal.text.splitlines()) <= columns


def test_a_terminal_without_colours_gets_none(cli: Cli, service: Service) -> None:
    finished_job(service.database)
    with cli.on_terminal("watch", "last", NO_COLOR="1") as terminal:
        assert terminal.read_to_end() == 0
    assert "\x1b[3" not in terminal.raw
    assert "Recommended" in terminal.text


def test_ctrl_c_on_a_terminal_says_how_to_come_back(cli: Cli, service: Service) -> None:
    recorder = claimed(service.database)
    run_trials(recorder)
    with cli.on_terminal("watch", "last") as terminal:
        terminal.read_until("1 crashed")
        terminal.interrupt()
        assert terminal.read_to_end() == 130
    assert f"x5tune watch {job_of(recorder)[:13]}" in terminal.text
    assert "\x1b[?25h" in terminal.raw, "the cursor is back"
