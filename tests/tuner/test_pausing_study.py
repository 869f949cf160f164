"""Whole studies with pauses on a real Ray, with real slots, probes and checkpoints."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.tuner.pausing import curve, play_on
from tests.tuner.support import RecordingObserver, probe_config, probe_host, slot_setup
from tests.tuner.test_run_study import Saboteur, Study, slot_pids, study
from tuner.records import Outcome, Point, StopReason
from tuner.seeds import trial_seed

__all__ = ["study"]

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]

DIGITS: dict[str, Any] = {
    "workload": "digits-cnn",
    "fidelity": {"axis": "samples", "max": 3200, "reports": 20},
    "search": {"lr": {"low": 1e-4, "high": 1.0, "log": True}, "batch_size": 32, "dropout": 0.2},
    "pruner": "auto",
    "seed": 5,
}


def told(observer: RecordingObserver, number: int) -> list[Point]:
    return [point for trial, point in observer.points if trial == number]


def test_a_trial_is_paused_its_slot_reused_and_gone_on_with_as_if_nothing_had_been(study: Study) -> None:
    slots: set[int] = set()
    study.observer.at["probe_ended"] = lambda: slots.update(slot_pids(study.cluster))

    result = study.run(**DIGITS, budget={"trials": 10}, confirm={"seeds": 0})

    observer = study.observer
    assert observer.outcomes.total() == 10
    assert len({ended.number for ended in observer.ended}) == 10
    assert len(slots) <= 2
    assert {trial.state for trial in study.trials()} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert not (study.folder / "checkpoints").exists()
    assert result.recipes
    resumed = max(set(observer.gone_on), key=lambda number: len(told(observer, number)))
    assert len([1 for number, ended in observer.probes if number == resumed and ended.is_paused]) >= 1
    start = next(started for started in observer.started if started.number == resumed)
    fidelity = study.observer.decided[0].fidelity.to_json()
    config = probe_config(
        parameters=dict(start.parameters), derived=dict(start.derived), seed=trial_seed(5), fidelity=fidelity
    )
    with probe_host("digits-cnn") as host:
        alone = play_on(host, slot_setup(study.folder, workload="digits-cnn"), config)
    mine = [(p.index, p.position, p.step, p.value.number) for p in told(observer, resumed)]
    assert mine == curve(alone)[: len(mine)]


def test_a_slot_killed_under_a_resumed_trial_costs_no_trial(study: Study) -> None:
    def kill() -> None:
        os.kill(slot_pids(study.cluster)[0], signal.SIGKILL)

    saboteur = Saboteur(lambda: len(study.observer.gone_on) >= 2, kill)

    study.run(pruner="auto", search={"sleep_seconds": 0.05}, budget={"trials": 12}, confirm={"seeds": 0})

    saboteur.join(5)
    outcomes = study.observer.outcomes
    assert outcomes.total() - outcomes["lost"] == 12
    assert TrialState.RUNNING not in {trial.state for trial in study.trials()}


def test_a_study_cut_short_keeps_its_checkpoints_and_the_next_attempt_goes_on_from_them(study: Study) -> None:
    def lose_the_lease() -> None:
        if len(study.observer.probes) >= 5:
            raise PermissionError("the lease is lost")

    spec: dict[str, Any] = {"pruner": "auto", "budget": {"trials": 10}, "confirm": {"seeds": 0}}
    study.observer.at = {"points_reported": lose_the_lease}
    with pytest.raises(PermissionError):
        study.run(**spec)
    kept = {int(entry.name) for entry in Path(study.folder, "checkpoints").iterdir()}
    study.observer = RecordingObserver()

    result = study.run(**spec)

    lost = {ended.number for ended in study.observer.ended if ended.outcome == Outcome.LOST}
    assert len(kept) >= 4
    assert not lost & kept
    assert len(lost) <= 2
    ends = [trial.user_attrs["end"]["outcome"] for trial in study.trials()]
    assert len(ends) - ends.count("lost") == 10
    assert result.stop_reason == StopReason.TRIALS
    assert not (study.folder / "checkpoints").exists()


def test_a_job_that_searches_the_loss_scale_starts_each_run_at_the_one_of_its_trial(study: Study) -> None:
    scales = [1.0, 2048.0, 65536.0]

    study.run(
        workload="byte-lm",
        precision="fp16",
        search={"loss_scale": {"choices": scales}, "lr": 1e-3, "batch_size": 8, "weight_decay": 0.01},
        baseline={"loss_scale": 2048},
        fidelity={"axis": "samples", "max": 48, "reports": 2},
        budget={"trials": 3},
        confirm={"seeds": 0},
    )

    asked = {started.number: started.derived["loss_scale"] for started in study.observer.started}
    stored = {trial.number: trial.params["loss_scale"] for trial in study.trials()}
    began = {ended.number: ended.health["loss_scaling"]["trajectory"][0] for ended in study.observer.ended}
    assert sorted(asked.values()) == scales
    assert stored == asked
    assert began == {number: [1, scale] for number, scale in asked.items()}
    assert all(p.parameters["loss_scale"] == asked[p.trial] for drafts in study.observer.recipes for p in drafts)
