"""What a specification that can run resolves to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tuner.jobspec import Budget, Choices, Confirm, Cost, Fixed, Range, ResolvedJob
from tuner.spec import resolve
from workloads.catalog import MANIFESTS


def job(**spec: Any) -> ResolvedJob:
    return resolve(spec).job


def warned(**spec: Any) -> list[str]:
    return [warning.field for warning in resolve(spec).warnings]


def test_an_empty_specification_is_the_default_workload_with_its_own_search() -> None:
    resolution = resolve({})

    assert resolution.job.workload == resolution.job.name == "digits-cnn"
    assert set(resolution.job.searched) == set(MANIFESTS["digits-cnn"].search)
    assert resolution.job.budget == Budget(trials=40)
    assert resolution.warnings == ()


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_built_in_resolves_without_warnings_and_covers_all_its_parameters(name: str) -> None:
    resolution = resolve({"workload": name})

    assert resolution.warnings == ()
    assert list(resolution.job.space) == list(resolution.job.baseline) == list(MANIFESTS[name].parameters)


def test_null_for_any_key_means_its_default() -> None:
    keys = list(resolve({}).job.to_json())

    assert resolve(dict.fromkeys([*keys, "metrics", "snapshot"])).job == resolve({}).job


def test_null_inside_sections_means_the_default_too() -> None:
    sections = {
        "objective": ["metric", "direction"],
        "fidelity": ["axis", "max", "reports"],
        "budget": ["trials", "full_runs", "seconds", "device_hours", "energy_kwh", "cost"],
        "limits": ["memory_fraction", "host_memory_mib", "probe_seconds", "silence_seconds", "max_failures"],
        "confirm": ["top", "seeds"],
        "resources": ["cpus", "gpus", "processes"],
        "search": ["lr", "batch_size"],
        "baseline": ["lr"],
    }

    assert resolve({section: dict.fromkeys(keys) for section, keys in sections.items()}).job == resolve({}).job


@pytest.mark.parametrize("written", [1e-5, "1e-5", "0.00001", "1E-05", ".00001", "+1e-5"])
def test_a_number_may_be_written_as_decimal_text(written: object) -> None:
    lr = job(search={"lr": {"low": written, "high": "1", "log": True}}).space["lr"]

    assert lr == Range(1e-5, 1.0, log=True)


def test_decimal_text_is_a_number_in_every_section() -> None:
    resolved = job(
        baseline={"lr": "1e-2"},
        search={"weight_decay": {"choices": ["1e-3", 0]}, "dropout": "1e-1"},
        fidelity={"max": "1e4", "reports": "8"},
        budget={"trials": "12", "seconds": "6e2", "cost": {"amount": "2e1", "per_device_hour": "2.5"}},
        limits={"probe_seconds": "1e2"},
        resources={"cpus": "2", "gpus": "0.5"},
        seed="11",
    )

    assert resolved.baseline["lr"] == 0.01
    assert resolved.space["weight_decay"] == Choices((0.001, 0.0))
    assert resolved.space["dropout"] == Fixed(0.1)
    assert (resolved.fidelity.max, resolved.fidelity.reports) == (10000.0, 8)
    assert resolved.budget == Budget(trials=12, seconds=600.0, cost=Cost(20.0, 2.5))
    assert (resolved.resources.cpus, resolved.resources.gpus) == (2.0, 0.5)
    assert resolved.seed == 11


@pytest.mark.parametrize("written", [40, 40.0, "40", "40.0", "4e1"])
def test_a_whole_number_may_be_written_with_a_point(written: object) -> None:
    assert job(budget={"trials": written}).budget.trials == 40


def test_another_cap_takes_the_place_of_the_usual_forty_trials() -> None:
    assert job(budget={"seconds": 600}).budget == Budget(trials=None, seconds=600.0)


def test_auto_is_decided_here_for_sampler_and_pruner_and_later_for_precision_and_gpus() -> None:
    resolved = job(sampler="auto", pruner="auto", precision="auto", resources={"gpus": "auto"})

    assert (resolved.sampler, resolved.pruner) == ("freeze_thaw", "freeze_thaw")
    assert (resolved.precision, resolved.resources.gpus) == ("auto", None)


def test_few_reports_leave_the_automatic_pruner_nothing_to_compare() -> None:
    assert job(sampler="tpe", fidelity={"reports": 3}).pruner == "none"


@pytest.mark.parametrize(
    ("named", "search"),
    [
        ({"sampler": "random"}, ("random", "median")),
        ({"pruner": "none"}, ("tpe", "none")),
        ({"sampler": "freeze_thaw"}, ("freeze_thaw", "freeze_thaw")),
        ({"pruner": "freeze_thaw", "sampler": "auto"}, ("freeze_thaw", "freeze_thaw")),
    ],
)
def test_a_named_sampler_or_pruner_is_optunas_search(named: dict[str, str], search: tuple[str, str]) -> None:
    assert (job(**named).sampler, job(**named).pruner) == search


def test_confirmation_can_be_switched_off() -> None:
    assert job(confirm={"top": 0}).confirm == Confirm(top=0, seeds=5)
    assert job(confirm={"seeds": 0}).confirm.runs == 0


def test_another_metric_takes_the_direction_that_the_user_gives() -> None:
    objective = job(objective={"metric": "val_accuracy", "direction": "maximize"}).objective

    assert (objective.metric, objective.direction) == ("val_accuracy", "maximize")


def test_turning_the_usual_direction_round_is_warned_about() -> None:
    assert warned(objective={"direction": "maximize"}) == ["objective.direction"]


def test_environment_values_become_text() -> None:
    assert job(environment={"A": 1, "_b": 0.5, "C": "x y"}).environment == {"A": "1", "_b": "0.5", "C": "x y"}


@pytest.mark.parametrize("name", ["naïve 学習 🚀", "x" * 200, 2026])
def test_any_printable_name_is_accepted(name: object) -> None:
    assert job(name=name).name == str(name)


def test_history_is_on_unless_it_is_turned_off() -> None:
    assert resolve({"workload": "quadratic"}).job.history
    assert resolve({"workload": "quadratic", "history": True}).warnings == resolve({"workload": "quadratic"}).warnings
    assert not resolve({"workload": "quadratic", "history": False}).job.history


def test_the_share_of_the_memory_that_may_be_used_is_taken_without_a_warning() -> None:
    assert resolve({"limits": {"memory_fraction": 0.8}}).job.limits.memory_fraction == 0.8
    assert warned(limits={"memory_fraction": 0.8}) == []


def test_fewer_configurations_than_trials_is_warned_about() -> None:
    search = {"lr": {"choices": [0.1, 0.2]}, "batch_size": {"low": 8, "high": 10}, "weight_decay": 0}

    resolution = resolve({"search": search, "baseline": {"lr": 0.1, "batch_size": 8}})

    assert [warning.field for warning in resolution.warnings] == ["search"]
    assert "6 configurations for 40 trials" in resolution.warnings[0].message
    assert resolution.estimate.trials == 6


def test_a_space_of_one_configuration_is_told_in_the_singular() -> None:
    space = {"lr": {"choices": [0.01]}, "batch_size": 64, "weight_decay": 0.0}
    resolution = resolve({"workload": "quadratic", "search": space, "budget": {"trials": 4}})
    assert resolution.warnings[0].message.startswith("There is only 1 configuration for 4 trials;")


def test_a_space_with_nothing_to_search_is_warned_about() -> None:
    assert warned(search={"lr": 0.1, "batch_size": 32, "weight_decay": 0}) == ["search"]


def test_a_budget_that_cannot_pay_for_confirmation_is_warned_about_with_numbers() -> None:
    [warning] = resolve({"budget": {"full_runs": 12}}).warnings

    assert warning.field == "budget"
    assert "20 full runs" in warning.message
    assert "12" in warning.message


def test_cmaes_says_which_parameters_it_leaves_to_chance() -> None:
    [warning] = resolve({"sampler": "cmaes"}).warnings

    assert warning.field == "sampler"
    assert "batch_size" in warning.message


def test_grid_is_accepted_when_everything_searched_is_countable() -> None:
    search = {"lr": {"choices": [0.1, 0.2]}, "batch_size": {"low": 1, "high": 64}, "weight_decay": 0}

    assert job(search=search, sampler="grid").sampler == "grid"


def test_steps_compare_fairly_with_one_batch_size() -> None:
    fidelity = job(search={"batch_size": 32}, fidelity={"axis": "steps", "max": 500}).fidelity

    assert (fidelity.axis, fidelity.max) == ("steps", 500.0)


def test_tokens_are_an_axis_where_samples_have_tokens() -> None:
    assert job(workload="byte-lm", fidelity={"axis": "tokens", "max": 1e5}).fidelity.axis == "tokens"


def test_a_resolved_job_survives_json_and_can_be_submitted_again() -> None:
    search = {
        "warmup": {"steps": 40, "start": 1e-7},
        "grad_clip": {"choices": [None, 1.0]},
        "dropout": {"low": 0, "high": 0.5},
    }
    resolved = job(search=search, budget={"cost": {"amount": 5, "per_device_hour": 2}}, environment={"A": "b"})

    written = json.loads(json.dumps(resolved.to_json(), allow_nan=False))

    assert ResolvedJob.from_json(written) == resolved
    assert resolve(written).job == resolved


@pytest.mark.parametrize(
    ("precision", "warned"), [("fp16", []), ("fp32", ["search.loss_scale"]), (None, ["search.loss_scale"])]
)
def test_searching_a_loss_scale_that_has_no_effect_is_warned_about(precision: str | None, warned: list[str]) -> None:
    spec = {"search": {"loss_scale": {"choices": [1, 2048, 65536]}}, "precision": precision}
    found = resolve(spec).warnings
    assert [warning.field for warning in found] == warned
    assert all("fp16" in warning.message for warning in found)
