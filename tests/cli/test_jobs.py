"""Looking at jobs, trials and recipes, and ending them.

The commands run inside the test's process here; the other files run them as processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli, add_named_job, claimed, finished_job, job_of, provisional, run_trials
from tests.service.support import Service, add_job, point, result
from tests.service.test_results_api import fitted
from tuner.records import Finding, Outcome, ProbeRecord, StopReason, TrialEnded, TrialStarted, Value
from x5tune import Client, wording

ESCAPES = "Größe [red]x[/red] :smile: \x1b[31mred\x1b[0m"


@pytest.fixture
def cli(service: Service, tmp_path: Path) -> Cli:
    return Cli(tmp_path, {"X5TUNE_URL": service.url, "X5TUNE_TOKEN": service.secrets["admin"]}, is_inside=True)


def test_an_empty_list_says_how_to_submit(cli: Cli) -> None:
    done = cli("jobs")
    assert done.code == 0
    assert "x5tune submit --workload digits-cnn" in done.out
    assert cli("jobs", "--json").json == {"items": [], "next": None}
    assert cli("jobs", "--state", "failed").out == "No job matches.\n"


def test_jobs_are_listed_newest_first_by_names_that_can_be_typed(cli: Cli, service: Service) -> None:
    ids = [add_job(service.database, name=f"job {index}") for index in range(4)]
    lines = cli("jobs", "--limit", "3").out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["3", "2", "1"]
    for line, job_id in zip(lines[1:], ids[::-1], strict=False):
        shown = line.split()[0]
        assert job_id.startswith(shown)
        assert cli("show", shown, "--json").json["id"] == job_id
    found = cli("jobs", "--limit", "3", "--json").json
    assert [job["id"] for job in found["items"]] == ids[:0:-1]
    assert found["next"]


def test_a_limit_beyond_one_page_is_fetched_in_pages(cli: Cli, service: Service) -> None:
    with service.database.write() as session:
        from tests.service.support import new_job

        for _ in range(205):
            new_job(session)
    assert len(cli("jobs", "--limit", "203", "--json").json["items"]) == 203


def test_what_users_name_things_is_never_markup_or_control_characters(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database, name=ESCAPES)
    for arguments in (("jobs",), ("show", job_id), ("trials", job_id), ("watch", job_id), ("best", job_id)):
        done = cli(*arguments)
        assert done.code == 0, done.err
        assert "\x1b" not in done.out
    assert "Größe [red]x[/red] :smile: \N{REPLACEMENT CHARACTER}[31mred" in cli("show", job_id).out
    assert "ValueError: [red]no[/red] data" in cli("trials", job_id).out


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_nothing_is_wider_than_the_terminal(cli: Cli, service: Service, columns: str) -> None:
    job_id = finished_job(service.database, name="a rather long name for a job " * 3)
    commands = [("jobs",), ("show", job_id), ("trials", job_id), ("best", job_id), ("workloads", "digits-cnn")]
    for arguments in [*commands, ("token", "list")]:
        lines = cli(*arguments, COLUMNS=columns).out.splitlines()
        assert max(map(len, lines)) <= int(columns), arguments


def test_a_trial_is_shown_with_its_hardware_and_its_output(cli: Cli, service: Service) -> None:
    recorder = claimed(service.database)
    told = {"mean": 0.5, "min": 0.25, "max": 1.0}
    seen = {
        **{"source": "nvml", "is_simulated": True, "devices": [], "seconds": 2.0, "samples": 3},
        **{"quantities": {"gpu0.utilisation": told, "gpu0.power_w": {"mean": 300.0, "min": 1.0, "max": 400.0}}},
        **{"counted": {"probe.cpu_s": 1.5}, "reasons": {"gpu0.sm_clock_mhz": "no_permission"}},
        **{"throttled": {"gpu0.thermal": 0.5}, "energy_j": 7200.0, "energy_source": "counter", "energy_reason": None},
    }
    trace = {"seconds": [0.0, 1.0], "values": {"gpu0.power_w": [1.0, None]}}
    probe = ProbeRecord(2.0, 2.0, 1, 77, "H100 (simulated)", None, 7200.0, seen, trace)
    recorder.trial_started(TrialStarted(0, True, {"lr": 0.1}, {"micro_batch": 32}, seed=7))
    recorder.points_reported(0, [point(1, 0.75)])
    recorder.trial_ended(TrialEnded(0, Outcome.CRASHED, "it broke", Value.of(0.75), f"{ESCAPES}\nlast line\n", probe))

    done = cli("show", job_of(recorder), "--trial", "0")
    assert done.code == 0, done.err
    for text in (
        "Trial 0 of",
        "crashed",
        "it broke",
        "0.75 (baseline)",
        "2.0 s in 1 probe on H100 (simulated)",
        "2 Wh (the device's counter, simulated)",
        "gpu0.thermal",
        "Not measured: gpu0.sm_clock_mhz: no permission",
        "last line",
    ):
        assert text in done.out
    assert [line.split() for line in done.out.splitlines() if "power_w" in line] == [
        ["gpu0.power_w", "300", "W", "1", "W", "400", "W"]
    ]
    assert "\x1b" not in done.out
    with Client(service.url, service.secrets["admin"]) as client:
        assert client.traces(job_of(recorder), 0) == [{"probe": 0, "trace": trace}]
        spend = client.job(job_of(recorder))["spend"]
    assert (spend["energy_kwh"], spend["energy_reason"], spend["is_simulated"]) == (0.002, "simulated", True)
    assert cli("show", job_of(recorder), "--trial", "4").err == "Error: There is no trial '4'.\n"


def test_a_job_is_shown_with_what_it_found(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    done = cli("show", "last")
    assert done.code == 0, done.err
    for text in (
        job_id,
        "succeeded: recommended",
        "0.5 (trial 0)",
        "0.3 (trial 1), 40 % better",
        "1 diverged",
        "proven",
    ):
        assert text in done.out
    assert cli("show", job_id.upper(), "--json").json["id"] == job_id


def test_memory_is_being_measured_only_while_a_job_runs(cli: Cli, service: Service) -> None:
    recorder = claimed(service.database)
    recorder.fit_measured({**fitted(), "state": "running", "micro_batch": None, "proofs": []}, None)
    assert "being measured" in cli("show", "last").out
    recorder.finish(result(StopReason.CANCELLED, verdict=None, recipes=[], diagnosis=[]))
    assert "not measured to its end" in cli("show", "last").out


def test_where_only_the_baseline_ran_to_its_end_the_best_trial_says_so(cli: Cli, service: Service) -> None:
    recorder = claimed(service.database)
    for number, outcome in enumerate((Outcome.OK, Outcome.PRUNED)):
        recorder.trial_started(TrialStarted(number, number == 0, {"lr": 0.1 / (number + 1)}, {}, seed=7))
        recorder.points_reported(number, [point(1, 0.5 - number / 5)])
        recorder.trial_ended(TrialEnded(number, outcome, None, Value.of(0.5 - number / 5), "", None))
    recorder.finish(result(diagnosis=[], recipes=[provisional()]))

    shown = cli("show", job_of(recorder), COLUMNS="120").out
    assert "0.5 (trial 0), the baseline itself; no other trial ran to its end" in shown
    assert "provisional" in shown


def test_a_waiting_job_says_why(cli: Cli, service: Service) -> None:
    add_job(service.database)
    assert "start one with `x5tune runner`" in cli("show", "last").out


def test_an_ambiguous_prefix_lists_what_it_may_mean(cli: Cli, service: Service) -> None:
    ids = ["01890000-0000-7000-8000-00000000000a", "01890000-0000-7000-8000-00000000000b"]
    for job_id in ids:
        add_named_job(service.database, job_id, f"job {job_id[-1]}")
    done = cli("show", "0189")
    assert (done.code, done.out) == (2, "")
    assert all(job_id in done.err for job_id in ids)
    shown = [line.split()[0] for line in cli("jobs").out.splitlines()[1:]]
    assert sorted(shown) == ids, "ids of one millisecond are shown as long as it takes to tell them apart"


@pytest.mark.parametrize("name", ["0189ffff", "nonsense", "01890000-0000-7000-8000-00000000ffff", "last", "%", ""])
def test_a_job_that_is_not_there_is_an_error(cli: Cli, name: str) -> None:
    done = cli("show", name)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")


def test_trials_can_be_sorted_and_narrowed(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    lines = cli("trials", job_id, "--sort", "value").out.splitlines()
    assert [line.split()[0] for line in lines] == ["#", "1", "0", "3", "2", "4"]
    assert lines[0].split() == ["#", "outcome", "value", "lr", "batch_size", "weight_decay", "seconds", "reason"]
    found = cli("trials", job_id, "--outcome", "pruned,diverged", "--json").json
    assert [(trial["number"], trial["outcome"]) for trial in found["items"]] == [(2, "diverged"), (3, "pruned")]
    assert cli("trials", job_id, "--outcome", "wat").code == 2
    assert cli("trials", job_id, "--sort", "wat").code == 2


def test_the_health_of_trials_is_a_table_of_its_own_and_a_line_of_the_best_one(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    lines = cli("trials", job_id, "--health", COLUMNS="120").out.splitlines()
    assert "gradient norm  update/weight  clipped  remarks" in lines[0]
    assert lines[1].split() == ["0", "ok", "0.41", "1.2e-03", "3", "%", "use", "bf16"]
    shown = cli("show", job_id, COLUMNS="120").out
    assert "gradient norm 0.41, update/weight 1.2e-03, clipped 3 %, use bf16" in shown


def test_a_parameter_that_a_trial_does_not_have_is_an_empty_cell() -> None:
    assert wording.parameter({"width": 64}, "momentum") == "–"
    assert wording.parameter({"momentum": None}, "momentum") == "null"


def test_a_job_without_trials_says_so(cli: Cli, service: Service) -> None:
    job_id = add_job(service.database)
    assert "has no trials yet" in cli("trials", job_id).out


def test_the_best_recipe_is_shown_in_full(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    done = cli("best", job_id)
    assert done.code == 0
    for text in ("proven", "+0.2 (40 %), 0.1 to 0.3", "2 fresh seeds", "95 % confidence", "accumulation"):
        assert text in done.out
    assert cli("best", job_id, "--json").json["items"][0]["rank"] == 1


def test_no_recipe_is_explained_by_the_diagnosis(cli: Cli, service: Service) -> None:
    finding = Finding("all_diverged", "Every trial diverged.", {}, "Lower search.lr below 0.1.")
    job_id = finished_job(service.database, result(verdict="no_recommendation", recipes=[], diagnosis=[finding]))
    done = cli("best", job_id)
    assert done.code == 0
    assert "Every trial diverged." in done.out
    assert "→ Lower search.lr below 0.1." in done.out
    exported = cli("export", job_id)
    assert (exported.code, exported.out) == (1, "")
    assert "Every trial diverged." in exported.err


def test_a_recipe_is_exported_by_its_job_or_by_its_own_id(cli: Cli, service: Service, client: Client) -> None:
    job_id = finished_job(service.database)
    recipe_id = client.recipes(job_id)[0]["id"]
    done = cli("export", "last", "--format", "args")
    assert done.out == client.export(recipe_id, "args")
    assert "--lr 0.1" in done.out
    assert done.err == ""
    assert cli("export", recipe_id, "-f", "args").out == done.out
    assert cli("export", recipe_id[:20], "-f", "env").out == client.export(recipe_id, "env")
    assert cli("export", job_id, "--json").json["parameters"]["lr"] == 0.1
    assert cli("export", job_id).out.startswith("# recipe: ")


def test_a_recipe_outlives_its_job(cli: Cli, service: Service, client: Client) -> None:
    job_id = finished_job(service.database)
    recipe_id = client.recipes(job_id)[0]["id"]
    assert cli("delete", job_id).code == 0
    assert cli("show", job_id).code == 1
    assert cli("export", recipe_id).code == 0


def test_a_provisional_recipe_is_exported_with_a_word_on_standard_error(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database, result(verdict="no_recommendation", recipes=[provisional()]))
    done = cli("export", job_id, "-f", "args")
    assert done.code == 0
    assert "provisional" in done.err
    assert "provisional" not in done.out


def test_an_unknown_format_is_bad_usage(cli: Cli, service: Service) -> None:
    finished_job(service.database)
    assert cli("export", "last", "-f", "hf").code == 2
    assert cli("export", "last", "-f", "yaml", "--json").code == 2


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_winds_down(cli: Cli, service: Service) -> None:
    add_job(service.database)
    assert "is cancelled" in cli("cancel", "last").out
    assert "had ended already" in cli("cancel", "last").out
    recorder = claimed(service.database)
    run_trials(recorder)
    assert "winds down and keeps its recipes" in cli("cancel", "last").out
    assert cli("cancel", job_of(recorder), "--json").json["cancel_requested"] is True


def test_only_an_ended_job_can_be_deleted(cli: Cli, service: Service, client: Client) -> None:
    job_id = add_job(service.database)
    refused = cli("delete", job_id)
    assert (refused.code, "cancel it first" in refused.err) == (1, True)
    cli("cancel", job_id)
    assert cli("delete", job_id, "--recipes", "--json").out == ""
    assert list(client.jobs()) == []


def test_what_fits_of_a_workload_is_listed(cli: Cli) -> None:
    done = cli("fit", "digits-cnn")
    assert done.code == 0
    assert "Nothing is known of digits-cnn yet" in done.out
    assert cli("fit", "digits-cnn", "--json").json == {"items": [], "next": None}


def test_workloads_are_listed_and_shown(cli: Cli) -> None:
    assert "digits-cnn" in cli("workloads").out
    done = cli("workloads", "digits-cnn")
    assert "0.0001 to 1 (log)" in done.out
    assert cli("workloads", "digits-cnn", "--json").json["name"] == "digits-cnn"
    unknown = cli("workloads", "digits")
    assert (unknown.code, "there are digits-cnn" in unknown.err) == (1, True)


def test_a_token_is_made_used_and_revoked(cli: Cli) -> None:
    secret = cli("token", "create", "ci", "--scope", "read", "--expires", "30d").out.strip()
    assert secret.startswith("x5t_")
    assert cli("jobs", X5TUNE_TOKEN=secret).code == 0
    refused = cli("submit", "-w", "quadratic", X5TUNE_TOKEN=secret)
    assert (refused.code, "wider scope" in refused.err) == (4, True)
    assert "ci" in cli("token", "list").out
    assert secret not in cli("token", "list", "--json").out
    assert cli("token", "revoke", "ci").code == 0
    assert cli("jobs", X5TUNE_TOKEN=secret).code == 4
    assert cli("token", "revoke", "ci").code == 1
    assert cli("token", "create", "x", "--expires", "soon").code == 2
