"""`x5tune schedule` on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.models import Night
from tests.cli.support import Cli
from tests.service.support import Service

ADD = ("schedule", "add", "--workload", "quadratic", "--cron", "0 2 * * *", "--timezone", "Europe/Berlin")


@pytest.fixture
def cli(service: Service, tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"X5TUNE_URL": service.url, "X5TUNE_TOKEN": service.secrets["admin"]}, is_inside=True)


def test_an_empty_list_says_how_to_make_one(cli: Cli) -> None:
    assert "x5tune schedule add" in cli("schedule", "list").out
    assert cli("schedule", "list", "--json").json == {"items": [], "next": None}


def test_a_schedule_from_the_first_to_the_last(cli: Cli, service: Service) -> None:
    made = cli(*ADD, "--name", "nightly", "--set", "budget.trials=6", "--until", "2100-01-31")
    assert made.code == 0, made.err
    assert "At 02:00" in made.out
    shown = cli("schedule", "show", "nightly", "--json").json
    assert shown["spec"]["budget"] == {"trials": 6}
    assert shown["ends_at"].startswith(("2100-01-31T", "2100-02-01T"))

    submitted = cli("schedule", "run", "nightly", "--json").json
    assert submitted["schedule_id"] == shown["id"]
    with service.database.write() as session:
        session.execute(sa.update(Night).values(comparison={"result": "regression", "before": 0.25, "now": 0.5}))
    text = cli("schedule", "show", shown["id"][:13]).out
    assert "REGRESSION" in text
    assert "by hand" in text
    assert "0.25" in text
    assert "REGRESSION" in cli("schedule", "list").out

    assert "is paused" in cli("schedule", "pause", "nightly").out
    assert "is due next on" in cli("schedule", "resume", "nightly").out
    assert cli("schedule", "remove", "nightly", "--yes").out == "Schedule nightly is removed.\n"
    assert cli("schedule", "show", "nightly").err == (
        "Error: There is no schedule 'nightly'. See them with: x5tune schedule list\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--cron", "x"), "cron"),
        (("--cron", "0 2 * * *", "--timezone", "Mars"), "timezone"),
        (("--cron", "0 2 * * *", "--overlap", "both"), "overlap"),
        (("--cron", "0 2 * * *", "--until", "soon"), "--until"),
        (("--cron", "0 2 * * *", "--webhook", "https://example.org"), "X5TUNE_WEBHOOK_SECRET"),
        (("--cron", "0 2 * * *", "--set", "search.lr.low=-1"), "spec.search.lr"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_made(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    done = cli("schedule", "add", "--workload", "quadratic", *arguments)
    assert done.code == 2, done.out
    assert said in done.err
    assert cli("schedule", "list", "--json").json["items"] == []


def test_two_of_one_name_are_told_apart_by_their_ids(cli: Cli) -> None:
    cli(*ADD, "--name", "twin")
    cli(*ADD, "--name", "twin")
    assert "Several schedules go by 'twin'" in cli("schedule", "pause", "twin").err


@pytest.mark.parametrize(("columns", "is_told"), [("100", True), ("80", True), ("60", False), ("45", False)])
def test_a_narrow_terminal_is_shown_whole_ids_and_times(cli: Cli, columns: str, is_told: bool) -> None:
    for _ in range(2):
        cli(*ADD, "--name", "nightly")
    [_, *shown] = cli("schedule", "list", COLUMNS=columns).out.splitlines()
    lines = [line for line in shown if not line.startswith(" ")]  # the others go on with a folded cell
    ids = {line.split()[0] for line in lines}
    assert all(cli("schedule", "show", each).code == 0 for each in ids)
    assert all(re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d", line) for line in lines)
    assert ("At 02:00" in lines[0]) == is_told
