"""Searching parameters that do not always exist: in the study, over a death, and down to the command line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.tuner.support import ScriptedSlots, coordinate, job, memory, probe_config, short_folder, slot_setup, stored
from tests.tuner.test_user_code import play
from tuner.assignment import Assignment
from tuner.conditions import active
from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range, ResolvedJob, UserCode
from tuner.records import StopReason

SPACE: dict[str, Parameter] = {
    "lr": Range(1e-4, 1e-1, log=True),
    "optimizer": Choices(("adamw", "sgd", None)),
    "beta2": Range(0.9, 0.999, when=Condition("optimizer", ("adamw",))),
    "momentum": Choices((0.0, 0.9, 0.99), Condition("optimizer", ("sgd",))),
    "nesterov": Choices((True, False), Condition("momentum", (0.9, 0.99))),
    "depth": Fixed(3),
}
FINITE: dict[str, Parameter] = {
    "optimizer": Choices(("adamw", "sgd")),
    "layers": Range(1, 3, integer=True, when=Condition("optimizer", ("adamw",))),
    "momentum": Choices(([1, 2], [3]), Condition("optimizer", ("sgd",))),
}


def conditional(space: dict[str, Parameter], baseline: dict[str, Any], **spec: Any) -> ResolvedJob:
    return replace(job(**spec), space=space, baseline=baseline)


def curve(assignment: Assignment) -> list[float]:
    parameters = assignment.probe["parameters"]
    return [float(len(json.dumps(parameters))) + 1 / index for index in (1, 2, 3, 4)]


def flat(parameters: Any) -> str:
    return json.dumps(parameters, sort_keys=True)


@pytest.mark.parametrize("sampler", ["random", "tpe", "gp", "cmaes"])
def test_every_sampler_gives_configurations_that_hold_together(sampler: str) -> None:
    storage = memory()
    baseline = {"lr": 0.01, "optimizer": "sgd", "momentum": 0.9, "nesterov": True, "depth": 3}
    the_job = conditional(SPACE, baseline, sampler=sampler, budget={"trials": 24})
    coordinator, observer = coordinate(the_job, storage, slots=2)

    ScriptedSlots(coordinator, 2, curve=curve).play()

    assert observer.started[0].parameters == baseline
    for started in observer.started:
        assert active(SPACE, started.parameters) == started.parameters
        assert set(started.parameters) >= {"lr", "optimizer", "depth"}
    assert {started.parameters["optimizer"] for started in observer.started} == {"adamw", "sgd", None}
    for trial, started in zip(stored(storage), observer.started, strict=True):
        assert set(trial.params) == set(started.parameters) - {"depth"}
        assert trial.state == TrialState.COMPLETE


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_a_finite_space_is_searched_to_its_end_without_a_repetition(sampler: str) -> None:
    the_job = replace(conditional(FINITE, {"optimizer": "adamw", "layers": 2}, budget={"trials": 50}), sampler=sampler)
    coordinator, observer = coordinate(the_job, slots=2)

    ScriptedSlots(coordinator, 2, curve=curve).play()

    assert coordinator.result().stop_reason == StopReason.SPACE_EXHAUSTED
    tried = sorted(flat(started.parameters) for started in observer.started)
    assert tried == sorted(
        [
            *(flat({"optimizer": "adamw", "layers": layers}) for layers in (1, 2, 3)),
            *(flat({"optimizer": "sgd", "momentum": momentum}) for momentum in ([1, 2], [3])),
        ]
    )


@pytest.mark.parametrize("turns", [1, 3, 8])
def test_a_death_half_way_loses_and_repeats_nothing(turns: int) -> None:
    storage = memory()
    the_job = conditional(FINITE, {"optimizer": "adamw", "layers": 2}, sampler="random", budget={"trials": 50})
    first, _ = coordinate(the_job, storage, slots=2)
    half = ScriptedSlots(first, 2, curve=curve)
    for _ in range(turns):
        half.turn()

    second, _ = coordinate(the_job, storage, slots=2)
    ScriptedSlots(second, 2, curve=curve).play()

    ends = [
        flat(trial.user_attrs["start"]["parameters"])
        for trial in stored(storage)
        if trial.user_attrs["end"]["outcome"] != "lost"
    ]
    assert (len(ends), len(set(ends))) == (5, 5)
    assert {trial.state for trial in stored(storage)} <= {TrialState.COMPLETE, TrialState.FAIL}


def test_the_dashboard_can_read_such_a_study() -> None:
    storage = memory()
    coordinator, _ = coordinate(conditional(FINITE, {"optimizer": "sgd", "momentum": [3]}, sampler="random"), storage)
    ScriptedSlots(coordinator, curve=curve).play()

    study = optuna.load_study(study_name="job", storage=storage)

    assert {"optimizer", "layers", "momentum"} >= set(optuna.importance.get_param_importances(study))
    assert study.trials_dataframe()["params_layers"].isna().any()


def test_a_command_gets_no_argument_for_what_does_not_exist() -> None:
    text = "import json, sys; print(json.dumps(sys.argv[1:]))"
    with short_folder() as folder:
        (folder / "train.py").write_text(text)
        argv = (sys.executable, "train.py", "--lr", "{lr}", "--width", "{width}", "--depth={depth}", "{batch_size}")
        setup = slot_setup(folder / "slot", code=UserCode(str(folder), argv=argv))

        reports = play(setup, probe_config(width=64))

    assert json.loads(reports[-1].log_tail) == ["--lr", "0.005", "--width", "64", "64"]
