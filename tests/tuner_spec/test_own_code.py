"""Specifications of the user's own training: what they resolve to, and what is refused with which remedy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tuner.jobspec import Choices, Fixed, MetricSource, Range, ResolvedJob, UserCode
from tuner.spec import MAX_NAME_CHARS, Problem, Resolution, SpecError, resolve

LR: dict[str, Any] = {"low": 1e-5, "high": 1e-1, "log": True}
STDOUT = r"step (?P<step>\d+) val_loss (?P<val_loss>\S+)"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("def train(config, probe): ...\n")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "job.py").write_text("def train(config, probe): ...\n")
    return str(tmp_path)


def own(folder: str, **keys: Any) -> dict[str, Any]:
    """A callable that can run, with `keys` in the place of what they name."""
    spec = {"workload": {"python": "train.py:train", "folder": folder}, "search": {"lr": LR}, "fidelity": {"max": 100}}
    return {**spec, **keys}


def command(folder: str, *argv: Any, **keys: Any) -> dict[str, Any]:
    return own(folder, **{"workload": {"command": list(argv), "folder": folder}, **keys})


def problems(spec: object) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        resolve(spec)
    found = list(caught.value.problems)
    json.dumps([problem.value for problem in found], allow_nan=False).encode()
    assert all(len(problem.message) <= 1000 for problem in found)
    return found


def assert_refused(spec: object, field: str, *parts: str) -> None:
    found = problems(spec)
    assert any(p.field == field and all(part in p.message for part in parts) for p in found), found


def warned(resolution: Resolution) -> dict[str, str]:
    return {warning.field: warning.message for warning in resolution.warnings}


# What is accepted


@pytest.mark.parametrize("target", ["train.py:train", "pkg/job.py:train", "pkg.job:train", "train:Some.method"])
def test_a_callable_is_named_by_file_or_module(folder: str, target: str) -> None:
    job = resolve(own(folder, workload={"python": target, "folder": folder})).job

    assert job.code == UserCode(folder, target)
    assert (job.workload, job.name) == (target, target)


def test_a_name_made_of_a_long_function_is_cut_as_one_that_is_given_must_be(folder: str) -> None:
    long = "f" * 300
    (Path(folder) / "train.py").write_text(f"def {long}(config, probe): ...\n")
    job = resolve(own(folder, workload={"python": f"train.py:{long}", "folder": folder})).job
    assert (len(job.name), job.workload[:200], len(job.workload) > 300) == (MAX_NAME_CHARS, job.name, True)


def test_a_command_keeps_its_arguments_and_is_shown_by_program_and_script(folder: str) -> None:
    program = Path(folder, "bin", "python")
    program.parent.mkdir()
    program.symlink_to(sys.executable)

    job = resolve(command(folder, str(program), "train.py", "--lr={lr}", "--epochs", 3, "--seed", "{seed}")).job

    assert job.code == UserCode(
        folder, argv=(str(program), "train.py", "--lr={lr}", "--epochs", "3", "--seed", "{seed}")
    )
    assert job.workload == "python train.py"


@pytest.mark.parametrize(
    "metrics",
    [{"stdout": STDOUT}, {"stdout": STDOUT, "jsonl": None}, None],
)
def test_a_resolved_job_can_be_stored_and_submitted_again(folder: str, metrics: Any) -> None:
    search = {
        "lr": LR,
        "hidden": {"choices": [[64, 64], None, "wide", True, 2]},
        "width": 8,
        "note": "1e-5",
        "off": None,
    }
    spec = command(
        folder, "python", "train.py", "{lr}{hidden}{width}{note}{off}{betas}", metrics=metrics, search=search
    )
    job = resolve({**spec, "baseline": {"betas": [0.9, 0.99], "lr": 0.5}}).job

    written = json.loads(json.dumps(job.to_json()))

    assert ResolvedJob.from_json(written) == job
    assert resolve(written).job == job
    assert written["workload"] == {
        "command": ["python", "train.py", "{lr}{hidden}{width}{note}{off}{betas}"],
        "folder": folder,
    }
    assert job.space["note"] == Fixed("1e-5")
    assert job.space["off"] == Fixed(None)


def test_jobs_stored_before_there_was_user_code_can_still_be_read() -> None:
    written = resolve({}).job.to_json()
    del written["metrics"]

    job = ResolvedJob.from_json(written)

    assert (job.code, job.metrics, job.workload) == (None, None, "digits-cnn")


def test_own_parameters_may_be_anything_and_come_back_intact(folder: str) -> None:
    values = [[128, 64], None, True, 1, 1.5, "1", "gelu"]
    search = {"x": {"choices": values}, "width": {"low": 64, "high": 512, "int": True}, "drop": {"low": 0, "high": 1}}

    job = resolve(own(folder, search=search)).job

    assert job.space["x"] == Choices(tuple(values))
    assert job.space["width"] == Range(64, 512, integer=True)
    assert job.space["drop"] == Range(0.0, 1.0)


def test_text_that_spells_a_number_is_one_where_the_name_says_so(folder: str) -> None:
    job = resolve(own(folder, search={"lr": "1e-5", "batch_size": "64", "weight_decay": "1e-2", "tag": "1e-2"})).job

    assert dict(job.baseline) == {"lr": 1e-5, "batch_size": 64, "weight_decay": 0.01, "tag": "1e-2"}


def test_what_the_baseline_does_not_name_starts_in_the_middle_or_at_the_first_choice(folder: str) -> None:
    search = {
        "lr": LR,
        "width": {"low": 64, "high": 512, "int": True},
        "drop": {"low": 0, "high": 1},
        "act": {"choices": ["gelu", "relu"]},
        "depth": 2,
        "momentum": {"low": 0.5, "high": 0.9},
    }

    resolution = resolve(own(folder, search=search, baseline={"momentum": 0.9}))

    job, warning = resolution.job, warned(resolution)["baseline"]
    assert dict(job.baseline) == {
        "lr": pytest.approx(1e-3), "width": 288, "drop": 0.5, "act": "gelu", "depth": 2, "momentum": 0.9
    }  # fmt: skip
    assert all(name in warning for name in ("lr = 0.001", "width = 288", "drop = 0.5", "act = 'gelu'"))
    assert "depth" not in warning
    assert "momentum" not in warning


def test_a_complete_baseline_is_taken_as_it_is_without_a_warning(folder: str) -> None:
    resolution = resolve(own(folder, baseline={"lr": 0.01, "epochs": 3}))

    assert dict(resolution.job.baseline) == {"lr": 0.01, "epochs": 3}
    assert resolution.job.space["epochs"] == Fixed(3)
    assert "baseline" not in warned(resolution)


def test_the_axis_is_samples_with_a_batch_size_and_steps_without(folder: str) -> None:
    with_batch = own(folder, search={"lr": LR, "batch_size": {"choices": [16, 32]}})

    assert resolve(with_batch).job.fidelity.axis == "samples"
    assert resolve(own(folder)).job.fidelity.axis == "steps"
    assert resolve(own(folder)).job.fidelity.reports == 20


def test_samples_without_a_batch_size_warns_that_reports_must_say_them(folder: str) -> None:
    resolution = resolve(own(folder, fidelity={"axis": "samples", "max": 100}))

    assert "every report" in warned(resolution)["fidelity.axis"]


def test_without_a_horizon_the_first_run_is_to_show_it_and_nobody_knows_what_it_takes(folder: str) -> None:
    resolution = resolve(own(folder, fidelity={"axis": "seconds"}))

    assert not resolution.job.fidelity.is_known
    assert resolution.job.to_json()["fidelity"] == {"axis": "seconds", "max": None, "reports": 20}
    assert ResolvedJob.from_json(json.loads(json.dumps(resolution.job.to_json()))) == resolution.job
    assert resolution.estimate.device_hours is None
    assert "the first run" in warned(resolution)["fidelity.max"]


@pytest.mark.parametrize(
    ("pattern", "axis"),
    [
        (r"epoch (?P<epoch>\d+) (?P<val_loss>\S+)", "epochs"),
        (r"epoch (?P<epoch>\d+) step (?P<step>\d+) (?P<val_loss>\S+)", "samples"),
        (STDOUT, "samples"),
    ],
)
def test_a_script_that_tells_nothing_but_epochs_is_compared_by_epochs(folder: str, pattern: str, axis: str) -> None:
    spec = command(folder, "x", "{lr}", "{micro_batch}", metrics={"stdout": pattern}, fidelity=None)

    assert resolve(spec).job.fidelity.axis == axis


def test_a_batch_size_that_the_command_uses_and_nobody_names_is_searched(folder: str) -> None:
    resolution = resolve(command(folder, "x", "{lr}", "{micro_batch}"))

    assert resolution.job.space["batch_size"] == Choices((16, 32, 64, 128, 256))
    assert resolution.job.baseline["batch_size"] == 64
    assert "16, 32, 64, 128, 256 are tried, from 64" in warned(resolution)["search.batch_size"]


@pytest.mark.parametrize(
    ("pattern", "metric", "direction"),
    [
        (r"(?P<step>\d+) (?P<val_acc>\S+)", "val_acc", "maximize"),
        (r"(?P<step>\d+) (?P<loss>\S+)", "loss", "minimize"),
        (r"(?P<step>\d+) (?P<loss>\S+) (?P<val_loss>\S+)", "val_loss", "minimize"),
        (r"(?P<step>\d+) (?P<name>\S+)=(?P<value>\S+)", "val_loss", "minimize"),
    ],
)
def test_a_pattern_with_one_metric_says_what_is_compared(
    folder: str, pattern: str, metric: str, direction: str
) -> None:
    objective = resolve(command(folder, "x", "{lr}", metrics={"stdout": pattern})).job.objective

    assert (objective.metric, objective.direction) == (metric, direction)


def test_a_pattern_with_several_metrics_has_to_be_told_which(folder: str) -> None:
    spec = command(folder, "x", "{lr}", metrics={"stdout": r"(?P<step>\d+) (?P<acc>\S+) (?P<auc>\S+)"})

    assert_refused(spec, "objective.metric", "reads acc, auc")


def test_the_metric_may_have_any_name(folder: str) -> None:
    assert resolve(own(folder)).job.objective.metric == "val_loss"
    objective = resolve(own(folder, objective={"metric": "eval/perplexity (wiki)"})).job.objective
    assert (objective.metric, objective.direction) == ("eval/perplexity (wiki)", "minimize")


@pytest.mark.parametrize("metric", ["mapped", "scoreboard", "alignment", "error_score"])
def test_a_metric_whose_name_does_not_say_which_way_is_better_needs_a_direction(folder: str, metric: str) -> None:
    assert_refused(own(folder, objective={"metric": metric}), "objective.direction", "minimize or maximize")
    assert resolve(own(folder, objective={"metric": metric, "direction": "maximize"})).job.objective.metric == metric


@pytest.mark.parametrize(
    "metric", ["acc", "val/acc@5", "test_accuracy", "F1", "eval_f1", "roc_auc", "sacre.bleu", "top5"]
)
def test_a_metric_that_looks_better_higher_is_maximized(folder: str, metric: str) -> None:
    assert resolve(own(folder, objective={"metric": metric})).job.objective.direction == "maximize"
    odd = warned(resolve(own(folder, objective={"metric": metric, "direction": "minimize"})))
    assert "looks better the higher" in odd["objective.direction"]


@pytest.mark.parametrize("metric", ["val_loss", "wer", "rmse", "ppl"])
def test_a_metric_that_looks_better_lower_is_minimized(folder: str, metric: str) -> None:
    assert resolve(own(folder, objective={"metric": metric})).job.objective.direction == "minimize"


def test_the_estimate_counts_confirmation_too(folder: str) -> None:
    estimate = resolve(own(folder, budget={"trials": 10}, fidelity={"axis": "seconds", "max": 60})).estimate

    assert (estimate.trials, estimate.confirmation_runs) == (10, 20)
    assert estimate.device_hours == pytest.approx(0.5)


def test_own_code_may_search_a_loss_scale_whatever_the_precision(folder: str) -> None:
    search = {"lr": 0.1, "loss_scale": {"low": 128, "high": 65536, "log": True}}

    assert set(warned(resolve(own(folder, search=search, precision="bf16")))) == {"baseline"}


# The command


def test_micro_batch_counts_as_the_use_of_batch_size(folder: str) -> None:
    search = {"lr": LR, "batch_size": {"choices": [16, 32]}}

    job = resolve(command(folder, "train", "{lr}", "{micro_batch}", "{accumulation}", search=search)).job

    assert set(job.searched) == {"lr", "batch_size"}


def test_a_command_without_placeholders_is_taken_to_read_its_configuration(folder: str) -> None:
    resolution = resolve(command(folder, "python", "train.py", "{{literal}}"))

    assert "X5TUNE_CONFIG" in warned(resolution)["workload.command"]


def test_a_command_without_a_seed_is_warned_of_confirmation(folder: str) -> None:
    assert "{seed}" in warned(resolve(command(folder, "python", "train.py", "{lr}")))["workload.command"]
    assert "workload.command" not in warned(resolve(command(folder, "python", "train.py", "{lr}", "{seed}")))
    unconfirmed = command(folder, "python", "train.py", "{lr}", confirm={"top": 0})
    assert "workload.command" not in warned(resolve(unconfirmed))


def test_a_fixed_parameter_that_the_command_does_not_use_is_a_warning(folder: str) -> None:
    resolution = resolve(command(folder, "x", "{lr}{seed}", search={"lr": LR, "batch_size": 64, "width": 3}))

    assert "{width}" in warned(resolution)["search.width"]
    assert "search.batch_size" not in warned(resolution), "it turns steps into samples"


@pytest.mark.parametrize("word", ["&&", "|", ">"])
def test_the_words_of_a_shell_are_a_warning(folder: str, word: str) -> None:
    assert "no shell" in warned(resolve(command(folder, "x", "{lr}{seed}", word, "y")))["workload.command"]


def test_a_script_that_is_not_there_is_a_warning(folder: str) -> None:
    assert "'trian.py'" in warned(resolve(command(folder, "python", "trian.py", "{lr}{seed}")))["workload.command"]


@pytest.mark.parametrize(
    ("argv", "field", "parts"),
    [
        (["x", "{rate}"], "workload.command.1", ["{rate}", "lr, seed, processes, run_dir"]),
        (["x", "{l}"], "workload.command.1", ["Did you mean lr?"]),
        (["x", "{loss_scale}"], "workload.command.1", ["Give it in search"]),
        (["x", "{lr:.3f}"], "workload.command.1", ["{{ and }}"]),
        (["x", '{"lr": 1}'], "workload.command.1", ["{{ and }}"]),
        (["x", "{seed}"], "search.lr", ["does not use it", "{lr}"]),
        ([], "workload.command", ["empty"]),
        (["x", None], "workload.command.1", ["quotes"]),
        (["x", True], "workload.command.1", ["quotes"]),
        (["x", ["y"]], "workload.command.1", ["a list"]),
        (["x", 10**400], "workload.command.1", ["quotes"]),
        ([" "], "workload.command.0", ["the program"]),
        (["x", "a\0b"], "workload.command.1", ["character"]),
        (["x", "\ud800"], "workload.command.1", ["character"]),
        (["x"] * 1001, "workload.command", ["at most 1000"]),
        (["x", "y" * 40_000], "workload.command.1", ["at most 32768"]),
    ],
)
def test_a_command_that_cannot_work_is_refused(folder: str, argv: list[Any], field: str, parts: list[str]) -> None:
    assert_refused(command(folder, *argv), field, *parts)


@pytest.mark.parametrize(
    ("program", "part"),
    [
        (".venv/bin/python", "/.venv/bin/python' does not exist"),
        ("/opt/nowhere/bin/python", "'/opt/nowhere/bin/python' does not exist"),
        ("./train.py", "may not be executed; name the interpreter first"),
        ("./pkg", "is a folder"),
        ("./" + "x" * 300, ""),
    ],
)
def test_a_program_that_is_not_there_is_refused_with_its_path(folder: str, program: str, part: str) -> None:
    assert_refused(command(folder, program, "{lr}"), "workload.command.0", part)


def test_a_program_without_a_path_is_for_the_runner_to_find(folder: str) -> None:
    assert "on the path here" in warned(resolve(command(folder, "python2.6", "{lr}")))["workload.command.0"]
    assert "workload.command.0" not in warned(resolve(command(folder, "python", "{lr}")))


def test_a_command_as_one_text_is_refused_with_the_list_to_write(folder: str) -> None:
    spec = own(folder, workload={"command": "python train.py --note 'a b' --lr {lr}", "folder": folder})

    assert_refused(spec, "workload.command", "no shell", '[python, train.py, --note, "a b", --lr, "{lr}"]')
    assert_refused(
        own(folder, workload={"command": "it's", "folder": folder}), "workload.command", "[python, train.py]"
    )


# The callable and its folder


@pytest.mark.parametrize(
    ("workload", "field", "part"),
    [
        ({"python": "train.py"}, "workload.python", "a colon and a function"),
        ({"python": "train.py:"}, "workload.python", "no function's name"),
        ({"python": "train.py:my-train"}, "workload.python", "no function's name"),
        ({"python": "train.py:train()"}, "workload.python", "no function's name"),
        ({"python": "my-mod:train"}, "workload.python", "neither a file"),
        ({"python": "train.sh:train"}, "workload.python", "no module 'train.sh'"),
        ({"python": "/x/train.py:train"}, "workload.python", "inside the folder"),
        ({"python": "../train.py:train"}, "workload.python", "inside the folder"),
        ({"python": "trian.py:train"}, "workload.python", "There is no file 'trian.py'"),
        ({"python": "pkg.jbo:train"}, "workload.python", "There is no module 'pkg.jbo'"),
        ({"python": "tra\0in.py:train"}, "workload.python", "no path"),
        ({"python": "x" * 5000 + ".py:train"}, "workload.python", "no path"),
        ({"python": "x" * 900 + ".py:train"}, "workload.python", "cannot be looked for"),
        ({"python": 5}, "workload.python", "a number"),
        ({"python": "train.py:train", "command": ["x"]}, "workload.command", "one of the two"),
        ({}, "workload", "needs python"),
        ({"class": "train.py:Model"}, "workload.class", "There are: python, command, folder"),
        ({"python": "train.py:train", "folder": None}, "workload.folder", "missing"),
        ({"python": "train.py:train", "folder": "."}, "workload.folder", "absolute"),
        ({"python": "train.py:train", "folder": "~/x"}, "workload.folder", "absolute"),
        ({"python": "train.py:train", "folder": "/nowhere/at/all"}, "workload.folder", "does not exist"),
        ({"python": "train.py:train", "folder": "/a\0"}, "workload.folder", "character"),
        ({"python": "train.py:train", "folder": "/" + "x" * 5000}, "workload.folder", "cannot be looked into"),
        ({"python": "train.py:train", "folder": 5}, "workload.folder", "a number"),
    ],
)
def test_code_that_cannot_be_found_is_refused(folder: str, workload: dict[str, Any], field: str, part: str) -> None:
    assert_refused(own(folder, workload={"folder": folder, **workload}), field, part)


def test_a_file_is_no_folder(folder: str) -> None:
    spec = own(folder, workload={"python": "train.py:train", "folder": f"{folder}/train.py"})

    assert_refused(spec, "workload.folder", "is a file")


def test_a_module_outside_the_folder_is_a_warning(folder: str) -> None:
    resolution = resolve(own(folder, workload={"python": "installed.job:train", "folder": folder}))

    assert "installed" in warned(resolution)["workload.python"]


# Parameters, fidelity, metrics


@pytest.mark.parametrize(
    ("keys", "field", "part"),
    [
        ({"search": {}}, "search", "names no parameter"),
        ({"search": None, "baseline": {"lr": 1}}, "search", "names no parameter"),
        ({"search": [1]}, "search", "mapping"),
        ({"search": {"seed": 1}}, "search.seed", "every run gets its own"),
        ({"search": {"micro_batch": {"choices": [1, 2]}}}, "search.micro_batch", "follows from batch_size"),
        ({"search": {"lr": 1}, "baseline": {"accumulation": 2}}, "baseline.accumulation", "follows from batch_size"),
        ({"search": {"batch-size": 1}}, "search.batch-size", "Write batch_size."),
        ({"search": {"größe": 1}}, "search.größe", "letters"),
        ({"search": {"x" * 101: 1}}, "search." + "x" * 101, "letters"),
        ({"search": {1: 1}}, "search", "not text"),
        ({"search": {f"p{i}": 1 for i in range(201)}}, "search", "at most 200"),
        ({"search": {"lr": 0}}, "search.lr", "above 0"),
        ({"search": {"lr": None}}, "search.lr", "null"),
        ({"search": {"lr": {"low": -1, "high": 1}}}, "search.lr.low", "above 0"),
        ({"search": {"batch_size": {"choices": [0]}}}, "search.batch_size.choices.0", "at least 1"),
        ({"search": {"batch_size": 2.5}}, "search.batch_size", "whole"),
        ({"search": {"x": {"low": 1}}}, "search.x.high", "missing"),
        ({"search": {"x": {"low": "a", "high": 1}}}, "search.x.low", "number"),
        ({"search": {"x": {"lo": 1, "hi": 2}}}, "search.x.lo", "Did you mean low?"),
        ({"search": {"x": {"low": 1, "high": 2, "when": {"y": 1}}}}, "search.x.when", "no parameter 'y'"),
        ({"search": {"x": [1, 2]}}, "search.x", "{choices: [[...]]}"),
        ({"search": {"x": {"choices": [[1], [1.0]]}}}, "search.x.choices.1", "same"),
        ({"search": {"x": {"choices": [{"a": 1}]}}}, "search.x.choices.0", "mapping"),
        ({"search": {"x": {"choices": [[{"a": 1}]]}}}, "search.x.choices.0", "a mapping"),
        ({"search": {"x": float("nan")}}, "search.x", "finite"),
        ({"search": {"x": 10**400}}, "search.x", "too large"),
        ({"search": {"x": "a\0"}}, "search.x", "character"),
        ({"search": {"x": "a" * 10_001}}, "search.x", "at most 10000"),
        ({"search": {"x": b"a"}}, "search.x", "a bytes"),
        ({"search": {"x": 1}, "baseline": {"x": {"low": 1, "high": 2}}}, "baseline.x", "one value"),
        ({"search": {"x": {"low": 1, "high": 2}}, "baseline": {"x": "fast"}}, "baseline.x", "number"),
        ({"search": {"x": {"low": 1, "high": 2, "int": True}}, "baseline": {"x": 1.5}}, "baseline.x", "whole"),
        ({"sampler": "grid"}, "sampler", "lr"),
        ({"fidelity": {"axis": "epochs", "max": 3}}, "fidelity.axis", "for commands"),
        ({"fidelity": {"max": 0}}, "fidelity.max", "at least 1"),
        ({"fidelity": {"axis": "steps", "max": 2.5}}, "fidelity.max", "whole"),
        (
            {"search": {"batch_size": {"choices": [1, 2]}}, "fidelity": {"axis": "steps", "max": 9}},
            "fidelity.axis",
            "fix it in search",
        ),
        ({"objective": {"metric": ""}}, "objective.metric", "characters"),
        ({"objective": {"metric": "a\nb"}}, "objective.metric", "control"),
        ({"objective": {"metric": 5}}, "objective.metric", "a number"),
        ({"objective": {"metric": "samples"}}, "objective.metric", "cannot be what is compared"),
        ({"metrics": {"stdout": STDOUT}}, "metrics", "commands only"),
        ({"snapshot": "yes"}, "snapshot", "true or false"),
        ({"resources": {"processes": 2}}, "resources.processes", "is a function"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_field_and_a_remedy(
    folder: str, keys: dict[str, Any], field: str, part: str
) -> None:
    assert_refused(own(folder, **keys), field, part)


def test_one_mistake_in_search_makes_one_problem(folder: str) -> None:
    spec = command(folder, "x", "{lr}", "{width}", search={"lr": LR, "width": {"low": 2, "high": 1}})

    assert [problem.field for problem in problems(spec)] == ["search.width.low"]


@pytest.mark.parametrize(
    ("pattern", "metric"),
    [
        (STDOUT, "val_loss"),
        (r"(?P<step>\d+) (?P<val_acc_5>\S+)", "val/acc@5"),
        (r"(?P<samples>\d+) (?P<_5nn>\S+)", "5nn"),
        (r"(?P<step>\d+) (?P<name>\w+)=(?P<value>\S+)", "val loss (dev)"),
    ],
)
def test_a_pattern_names_its_metric_by_a_group(folder: str, pattern: str, metric: str) -> None:
    objective = {"metric": metric, "direction": "minimize"}

    job = resolve(command(folder, "x", "{lr}", metrics={"stdout": pattern}, objective=objective,
                          search={"lr": LR, "batch_size": 1})).job  # fmt: skip

    assert job.metrics == MetricSource(stdout=pattern)


@pytest.mark.parametrize(
    ("metrics", "field", "part"),
    [
        ({"stdout": r"(?P<step>\d+"}, "metrics.stdout", "not a regular expression"),
        ({"stdout": r"x{1,99999999999}(?P<step>x)"}, "metrics.stdout", "not a regular expression"),
        ({"stdout": r"[[a](?P<stp>x)"}, "metrics.stdout", ""),
        ({"stdout": r"(?P<step>\d+)"}, "metrics.stdout", "(?P<val_loss>...)"),
        ({"stdout": r"(?P<step>\d+)(?P<valloss>x)"}, "metrics.stdout", "Did you mean valloss?"),
        ({"stdout": r"(?P<step>\d+) (?P<name>x)"}, "metrics.stdout", "(?P<value>...)"),
        ({"stdout": r"(?P<val_loss>\S+)"}, "metrics.stdout", "(?P<step>...), (?P<samples>...) or (?P<epoch>...)"),
        ({"stdout": r"(?P<samples>\S+) (?P<val_loss>\S+)"}, "metrics.stdout", "steps axis needs"),
        ({"stdout": 5}, "metrics.stdout", "single quotes"),
        ({"stdout": "x" * 3000}, "metrics.stdout", "at most 2000"),
        ({"jsonl": "/tmp/log.jsonl"}, "metrics.jsonl", "write {run_dir}/metrics.jsonl here"),
        ({"csv": "../m.csv"}, "metrics.csv", "runs go on side by side"),
        ({"csv": "{run_dir}/../m.csv"}, "metrics.csv", "runs go on side by side"),
        ({"csv": "~/m.csv"}, "metrics.csv", "runs go on side by side"),
        ({"csv": "{run_dir}m.csv"}, "metrics.csv", "needs a /"),
        ({"csv": "{lr}/m.csv"}, "metrics.csv", "no placeholder but {run_dir}"),
        ({"csv": "{run_dir}"}, "metrics.csv", "must name a file"),
        ({"csv": "a\0b"}, "metrics.csv", "control character"),
        ({"csv": 5}, "metrics.csv", "must be a path"),
        ({"csv": "a", "jsonl": "b"}, "metrics", "names jsonl and csv"),
        ({}, "metrics", "needs stdout, jsonl, csv, tensorboard"),
        ({"json": "x"}, "metrics.json", "Did you mean jsonl?"),
        ("stdout", "metrics", "mapping"),
    ],
)
def test_metrics_that_cannot_be_read_are_refused(folder: str, metrics: Any, field: str, part: str) -> None:
    spec = command(folder, "x", "{lr}", metrics=metrics, objective={"metric": "val_loss"})
    assert_refused(spec, field, part)


@pytest.mark.parametrize(
    ("given", "path"),
    [("m.csv", "m.csv"), ("{run_dir}/logs//m.csv", "logs/m.csv"), ("./logs/m.csv", "logs/m.csv")],
)
def test_a_metrics_file_lies_in_the_runs_own_folder(folder: str, given: str, path: str) -> None:
    resolution = resolve(command(folder, "x", "{lr}", "{run_dir}", metrics={"csv": given}))

    assert resolution.job.metrics == MetricSource(csv=path)
    assert resolution.job.to_json()["metrics"] == {"csv": path}
    assert "metrics" not in warned(resolution)


@pytest.mark.parametrize(("given", "path"), [("{run_dir}", "."), ("runs", "runs"), ("{run_dir}/runs/", "runs")])
def test_event_files_lie_in_a_folder_of_it_or_in_all_of_it(folder: str, given: str, path: str) -> None:
    job = resolve(command(folder, "x", "{lr}", "{run_dir}", metrics={"tensorboard": given})).job

    assert job.metrics == MetricSource(tensorboard=path)


def test_a_command_that_is_not_handed_its_run_folder_is_warned(folder: str) -> None:
    resolution = resolve(command(folder, "x", "{lr}", metrics={"csv": "m.csv"}))

    assert "X5TUNE_RUN_DIR" in warned(resolution)["metrics"]


def test_a_pattern_without_samples_needs_a_batch_size_or_the_steps_axis(folder: str) -> None:
    spec = command(folder, "x", "{lr}", metrics={"stdout": STDOUT}, fidelity={"axis": "samples", "max": 9})

    assert_refused(spec, "metrics.stdout", "without batch_size")
    assert resolve({**spec, "search": {"lr": LR, "batch_size": 8}}).job.metrics == MetricSource(stdout=STDOUT)
