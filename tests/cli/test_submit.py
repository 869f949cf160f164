"""`submit` and `validate`: what becomes a specification, and what is said of one that cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli
from x5tune import Client
from x5tune.specfile import SpecFileError, read_spec

SPEC = "name: größer ✓\nworkload: quadratic\nbudget: {trials: 4}\n"


def test_a_file_is_submitted_with_what_is_set_on_top(cli: Cli, client: Client) -> None:
    (cli.folder / "job.yaml").write_text(SPEC)
    done = cli("submit", "job.yaml", "--set", "budget.trials=7", "--set", "search.lr.low=1e-5", "-s", "seed=3")
    assert done.code == 0, done.err
    job = next(client.jobs())
    assert job["name"] == "größer ✓"
    assert job["spec"]["budget"] == {"trials": 7}
    assert job["spec"]["search"] == {"lr": {"low": 1e-5}}
    assert job["id"] in done.out
    assert "up to 7 trials" in done.out
    assert "No runner is connected" in done.out
    assert f"x5tune watch {job['id'][:13]}" in done.out


def test_a_workload_is_enough(cli: Cli, client: Client) -> None:
    done = cli("submit", "--workload", "quadratic", "--name", "mine", "--json")
    assert done.code == 0, done.err
    assert done.json == client.job(done.json["id"])
    assert done.json["name"] == "mine"


def test_standard_input_is_a_file_too(cli: Cli) -> None:
    done = cli("submit", "-", "--json", stdin='{"workload": "quadratic", "budget": {"trials": 3}}')
    assert done.json["spec"]["budget"] == {"trials": 3}


def test_the_same_idempotency_key_gives_the_first_job(cli: Cli, client: Client) -> None:
    runs = [cli("submit", "-w", "quadratic", "--idempotency-key", "k", "--json") for _ in range(2)]
    assert runs[0].json["id"] == runs[1].json["id"]
    other = cli("submit", "-w", "quadratic", "-s", "seed=5", "--idempotency-key", "k")
    assert (other.code, len(list(client.jobs()))) == (1, 1)
    assert other.err.startswith("Error: The idempotency key 'k' was used")


def test_a_fork_is_the_same_job_with_what_is_set_on_top(cli: Cli, client: Client) -> None:
    (cli.folder / "job.yaml").write_text(SPEC)
    cli("submit", "job.yaml")
    parent = next(client.jobs())
    done = cli("fork", "last", "--set", "budget.trials=9", "--set", "search.lr.high=0.5", "--name", "wider")
    assert done.code == 0, done.err
    fork = next(client.jobs())
    assert (fork["parent_id"], fork["name"]) == (parent["id"], "wider")
    assert fork["spec"] == {**parent["spec"], "name": "wider", "budget": {"trials": 9}, "search": {"lr": {"high": 0.5}}}
    assert parent["id"] in cli("show", "last").out
    refused = cli("fork", "last", "--set", "budget.trials=-1")
    assert (refused.code, "budget.trials" in refused.err) == (2, True)
    assert client.fork(parent["id"])["name"] == "größer ✓ (fork)"


def test_every_problem_is_listed_with_its_value_and_remedy(cli: Cli) -> None:
    done = cli("submit", "-w", "quadratic", "-s", "search.lr.high=abc", "-s", "budget.trials=-1")
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert lines[0] == "Error: The specification has 2 problems."
    assert lines[1].split(maxsplit=2)[:2] == ["budget.trials", "-1"]
    assert lines[2].split(maxsplit=2)[:2] == ["search.lr.high", "abc"]
    assert lines[1].index("must") == lines[2].index("must")


def test_a_narrow_terminal_gets_each_remedy_below_its_field(cli: Cli) -> None:
    done = cli("validate", "-w", "quadratic", "-s", "budget.trials=-1", COLUMNS="60")
    assert done.code == 2
    assert "\n  budget.trials  -1\n    must be" in done.err
    assert max(map(len, done.err.splitlines())) <= 60


def test_with_json_the_refusal_is_printed_as_the_api_said_it(cli: Cli) -> None:
    done = cli("validate", "-w", "quadratic", "-s", "budget.trials=.nan", "--json")
    assert done.code == 2
    assert done.json["status"] == 422
    assert done.json["errors"][0]["field"] == "budget.trials"
    assert done.err.startswith("Error: ")


def test_validation_estimates_and_submits_nothing(cli: Cli, client: Client) -> None:
    (cli.folder / "job.yaml").write_text(SPEC)
    done = cli("validate", "job.yaml")
    assert done.code == 0, done.err
    assert "The specification is valid." in done.out
    assert "up to 4 trials" in done.out
    assert set(cli("validate", "job.yaml", "--json").json) == {"spec", "resolved", "estimate", "warnings"}
    assert list(client.jobs()) == []


def test_warnings_go_to_standard_error(cli: Cli) -> None:
    done = cli(
        "validate", "-w", "quadratic", "-s", "budget.seconds=1", "-s", "fidelity={axis: seconds, max: 60}", "--json"
    )
    assert done.code == 0, done.err
    expected = [f"Warning: {each['field']}: " for each in done.json["warnings"]]
    assert expected
    assert all(start in done.err for start in expected)


@pytest.mark.parametrize("command", ["submit", "validate"])
def test_a_command_behind_dashes_is_a_workload_in_this_folder(cli: Cli, command: str) -> None:
    space = ("-s", "search.lr={low: 0.1, high: 1}", "-s", "fidelity.max=100")
    done = cli(command, "--json", *space, "--", "python", "train.py", "--lr", "{rate}")
    assert done.code == 2, "nothing fills {rate}"
    assert done.json["errors"][0]["field"] == "workload.command.3"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"# nothing\n", "is empty"),
        (b"a: [", "line 1, column 5"),
        (b"- 1\n", "must hold a mapping"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"workload: quadratic\nworkload: byte-lm\n", "twice"),
    ],
)
def test_a_file_that_is_no_specification_is_bad_usage(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecFileError, match=said):
        read_spec(str(path))


def test_what_cannot_be_read_is_said_in_a_sentence(lonely_cli: Cli) -> None:
    for name, said in (
        ("missing.yaml", "There is no file"),
        (".", "is a folder"),
        ("quadratic", "--workload quadratic"),
    ):
        done = lonely_cli("submit", name)
        assert done.code == 2
        assert done.err.startswith("Error: ")
        assert said in done.err


def test_nothing_to_submit_is_bad_usage(lonely_cli: Cli) -> None:
    assert lonely_cli("submit").code == 2


@pytest.mark.parametrize(("given", "expected"), [("here", "{base}/here"), ("/abs/x", "/abs/x"), (None, "{base}")])
def test_a_relative_folder_counts_from_the_file(tmp_path: Path, given: str | None, expected: str) -> None:
    line = "" if given is None else f", folder: {given}"
    (tmp_path / "job.yaml").write_text(f'workload: {{python: "train.py:train"{line}}}\n')
    spec = read_spec(str(tmp_path / "job.yaml"))
    assert spec["workload"]["folder"] == expected.format(base=tmp_path.resolve())


def test_a_command_and_a_callable_run_in_the_current_folder() -> None:
    here = str(Path.cwd())
    assert read_spec(None, command=["a", "--", "b"])["workload"] == {"command": ["a", "--", "b"], "folder": here}
    assert read_spec(None, workload="train.py:train")["workload"] == {"python": "train.py:train", "folder": here}
    with pytest.raises(SpecFileError, match="not both"):
        read_spec(None, workload="quadratic", command=["a"])
