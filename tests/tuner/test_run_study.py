"""Whole studies on a real Ray, with real slots and probes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from tests.tuner.support import RecordingObserver, eventually, processes_in
from tuner import coordinator, tune_pair
from tuner.cluster import Cluster, ClusterGone
from tuner.jobspec import ResolvedJob
from tuner.records import Confirmation, Outcome, Phase, StopReason, StudyResult
from tuner.search import open_storage
from tuner.spec import resolve
from tuner.study import CannotRunError, CutShortError, run_study

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(60)]

SMALL = {"axis": "samples", "max": 2048, "reports": 5}
NO_CONFIRM = {"seeds": 0}


class Study:
    """Runs a job with a database of its own."""

    def __init__(self, cluster: Cluster, folder: Path, url: str) -> None:
        self.cluster = cluster
        self.folder = folder
        self.url = url
        self.observer = RecordingObserver()
        self.confirmations: list[Confirmation] = []

    def run(self, **spec: Any) -> StudyResult:
        job: ResolvedJob = resolve({"workload": "quadratic", "fidelity": SMALL, "pruner": "none", **spec}).job
        return run_study(
            job=job,
            job_id="job",
            storage_url=self.url,
            observer=self.observer,
            cluster=self.cluster,
            data_folder=self.folder / "data",
            confirmations=self.confirmations,
            checkpoint_folder=self.folder / "checkpoints",
        )

    def trials(self) -> list[optuna.trial.FrozenTrial]:
        storage = open_storage(self.url)
        try:
            return optuna.load_study(study_name="job", storage=storage).get_trials()
        finally:
            storage.remove_session()
            storage.engine.dispose()


@pytest.fixture
def study(cluster: Cluster, tmp_path: Path, study_url: str) -> Iterator[Study]:
    """A study; nothing of it may be left afterwards but what is in the database."""
    yield Study(cluster, tmp_path, study_url)
    assert eventually(lambda: processes_in(cluster.folder / "s") == [])
    assert not (cluster.folder / "s").exists()
    assert not (cluster.folder / "tune").exists()


def slot_pids(cluster: Cluster) -> list[int]:
    """The processes of the slots: they name the folders that they keep."""
    folder = cluster.folder / "s"
    return [int(entry.name) for entry in folder.iterdir()] if folder.exists() else []


class Saboteur(threading.Thread):
    """Does `act` once `when` holds, beside the study."""

    def __init__(self, when: Any, act: Any) -> None:
        super().__init__(daemon=True)
        self.when, self.act = when, act
        self.start()

    def run(self) -> None:
        if eventually(self.when, 30.0):
            self.act()


def test_a_job_comes_to_proven_recipes_with_slots_used_again(study: Study) -> None:
    seen: set[int] = set()
    study.observer.at["trial_ended"] = lambda: seen.update(slot_pids(study.cluster))
    study.observer.at["confirmation_ended"] = lambda: seen.update(slot_pids(study.cluster))

    result = study.run(
        name="größe/../损失 \N{PILE OF POO}", budget={"trials": 10}, confirm={"top": 2, "seeds": 5}, pruner="median"
    )

    assert (result.verdict, result.stop_reason) == ("recommended", StopReason.TRIALS)
    assert result.recipes[0].status == "proven"
    assert study.observer.phases == [Phase.SEARCH, Phase.CONFIRM]
    assert 1 <= len(seen) <= 2
    assert study.observer.outcomes.total() == 10
    assert [trial.number for trial in study.trials()] == list(range(10))
    assert result.device_seconds > 0


def test_trials_that_misbehave_have_their_own_outcomes_and_the_rest_goes_on(study: Study) -> None:
    search = {
        "lr": 0.005,
        "batch_size": 64,
        "weight_decay": 0.0,
        "kill_at": {"choices": [None, 2]},
        "crash_at": {"choices": [None, 3]},
        "nan_at": {"choices": [None, 4]},
        "hang_at": {"choices": [None, 5]},
    }

    result = study.run(
        search=search,
        budget={"trials": 50},
        confirm=NO_CONFIRM,
        limits={"silence_seconds": 1, "max_failures": 50},
        sampler="grid",
    )

    assert result.stop_reason == StopReason.SPACE_EXHAUSTED
    assert study.observer.outcomes == {
        "out_of_memory": 8,
        "crashed": 4,
        "diverged": 2,
        "timed_out": 1,
        "ok": 1,
    }
    states = [trial.state for trial in study.trials()]
    assert (states.count(TrialState.PRUNED), states.count(TrialState.FAIL)) == (10, 5)


def test_where_every_trial_diverges_there_is_a_diagnosis(study: Study) -> None:
    result = study.run(search={"lr": {"low": 0.5, "high": 2.0}}, baseline={"lr": 1.0}, budget={"trials": 5})

    assert (result.verdict, result.failed) == ("no_recommendation", False)
    assert [finding.code for finding in result.diagnosis] == ["all_diverged"]


def test_a_slot_killed_in_the_middle_of_a_trial_costs_that_try_alone(study: Study) -> None:
    def kill() -> None:
        os.kill(slot_pids(study.cluster)[0], signal.SIGKILL)

    saboteur = Saboteur(lambda: len(study.observer.points) >= 8, kill)

    result = study.run(search={"sleep_seconds": 0.05}, budget={"trials": 6}, confirm=NO_CONFIRM)

    saboteur.join(5)
    assert result.stop_reason == StopReason.TRIALS
    assert study.observer.outcomes["lost"] == 1
    assert study.observer.outcomes.total() == 7
    (retry,) = [started for started in study.observer.started if started.retry_of is not None]
    lost = next(ended for ended in study.observer.ended if ended.outcome == Outcome.LOST)
    assert retry.retry_of == lost.number
    assert {trial.state for trial in study.trials()} <= {TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL}


def test_a_warm_parent_killed_in_the_middle_of_a_trial_costs_that_try_alone(study: Study) -> None:
    def kill() -> None:
        parents = [p for p in processes_in(study.cluster.folder / "s") if "warm_parent" in " ".join(p.cmdline())]
        parents[0].kill()

    saboteur = Saboteur(lambda: len(study.observer.points) >= 8, kill)

    study.run(search={"sleep_seconds": 0.05}, budget={"trials": 6}, confirm=NO_CONFIRM)

    saboteur.join(5)
    # The kill may hit a probe (out_of_memory, as a kill from outside looks) or the parent of all.
    outcomes = study.observer.outcomes
    assert outcomes.total() - outcomes["lost"] == 6
    assert outcomes["ok"] + outcomes["diverged"] >= 5


def test_a_lost_lease_ends_the_study_at_once_and_the_next_runner_finishes_it(study: Study) -> None:
    lost_at: list[float] = []

    def lose_the_lease() -> None:
        if len(study.observer.ended) >= 3:
            lost_at.append(time.monotonic())
            raise PermissionError("the lease is lost")

    study.observer.at = {"points_reported": lose_the_lease, "stop_requested": lose_the_lease}
    spec: dict[str, Any] = {
        "search": {"sleep_seconds": 0.05},
        "budget": {"trials": 8},
        "confirm": {"top": 1, "seeds": 5},
    }
    with pytest.raises(PermissionError, match="the lease is lost"):
        study.run(**spec)
    assert time.monotonic() - lost_at[0] < 10
    assert len(lost_at) == 1
    left = [trial.number for trial in study.trials() if trial.state == TrialState.RUNNING]
    assert left
    study.observer = RecordingObserver()

    result = study.run(**spec)

    assert [ended.number for ended in study.observer.ended[: len(left)]] == left
    assert study.observer.outcomes["lost"] == len(left)
    ends = [trial.user_attrs["end"]["outcome"] for trial in study.trials()]
    assert len(ends) - ends.count("lost") == 8
    assert result.stop_reason == StopReason.TRIALS


def test_a_cancelled_study_winds_down_and_keeps_its_recipes(study: Study) -> None:
    def cancel() -> None:
        study.observer.stop = StopReason.CANCELLED

    Saboteur(lambda: bool(study.observer.recipes and study.observer.recipes[-1]), cancel)

    result = study.run(search={"sleep_seconds": 0.02}, budget={"trials": 1000})

    assert (result.stop_reason, result.verdict) == (StopReason.CANCELLED, None)
    assert result.recipes
    assert TrialState.RUNNING not in {trial.state for trial in study.trials()}


def test_a_cancellation_is_heard_while_the_cluster_has_no_room_for_a_slot(study: Study) -> None:
    import ray

    @ray.remote(num_cpus=2)
    def occupy() -> None:
        time.sleep(30)

    others = occupy.remote()
    time.sleep(1.0)
    try:
        Saboteur(lambda: bool(study.observer.started), lambda: setattr(study.observer, "stop", StopReason.CANCELLED))
        began = time.monotonic()
        result = study.run(budget={"trials": 5})
        took = time.monotonic() - began
    finally:
        ray.cancel(others, force=True)

    assert took < 20
    assert result.stop_reason == StopReason.CANCELLED
    assert {trial.state for trial in study.trials()} == {TrialState.FAIL}


def test_a_study_whose_ray_has_died_ends_with_its_process(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_pair, "NODES_CHECK_S", 0.0)
    monkeypatch.setattr(tune_pair, "has_living_node", lambda: len(study.observer.points) < 4)

    with pytest.raises(ClusterGone, match="no living node"):
        study.run(budget={"trials": 100}, confirm=NO_CONFIRM)

    assert TrialState.RUNNING in {trial.state for trial in study.trials()}


def test_a_study_that_tune_cuts_short_is_no_result(study: Study) -> None:
    """Tune ends early on SIGUSR1, for one."""
    Saboteur(lambda: len(study.observer.points) >= 4, lambda: os.kill(os.getpid(), signal.SIGUSR1))

    with pytest.raises(CutShortError):
        study.run(search={"sleep_seconds": 0.05}, budget={"trials": 100}, confirm=NO_CONFIRM)


@pytest.mark.parametrize(
    "fidelity",
    [
        {"axis": "steps", "max": 20, "reports": 5},
        {"axis": "seconds", "max": 0.3, "reports": 3},
    ],
)
def test_each_axis_reaches_its_end(study: Study, fidelity: dict[str, Any]) -> None:
    search = {"lr": {"low": 0.001, "high": 0.01}, "batch_size": 64, "weight_decay": 0.0}

    study.run(search=search, fidelity=fidelity, budget={"trials": 3}, confirm=NO_CONFIRM)

    assert study.observer.outcomes == {"ok": 3}
    last = {number: point.index for number, point in study.observer.points}
    assert set(last.values()) == {fidelity["reports"]}


def test_a_workload_with_torch_trains_in_forked_probes(study: Study) -> None:
    result = study.run(
        workload="digits-cnn",
        fidelity={"axis": "samples", "max": 512, "reports": 2},
        search={"lr": {"low": 1e-4, "high": 1e-2, "log": True}, "batch_size": 64},
        budget={"trials": 3},
        confirm=NO_CONFIRM,
    )

    assert study.observer.outcomes == {"ok": 3}
    assert result.stop_reason == StopReason.TRIALS


def test_more_than_the_cluster_has_is_refused(study: Study) -> None:
    with pytest.raises(CannotRunError, match=r"resources.gpus = 9"):
        study.run(resources={"gpus": 9})
    with pytest.raises(CannotRunError, match=r"resources.cpus = 64"):
        study.run(resources={"cpus": 64})


def test_a_folder_that_cannot_be_made_ends_the_study_with_an_error(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk does."""
    monkeypatch.setattr(coordinator, "MAX_LOST_IN_ROW", 1)
    (study.cluster.folder / "s").write_text("in the way")
    try:
        with pytest.raises(Exception, match="runs in a row were lost"):
            study.run(budget={"trials": 3}, confirm=NO_CONFIRM)
    finally:
        (study.cluster.folder / "s").unlink(missing_ok=True)

    assert TrialState.RUNNING not in {trial.state for trial in study.trials()}


def test_a_job_that_recommends_nothing_says_why_by_a_diagnosis(study: Study) -> None:
    result = study.run(
        workload="tabular-mlp",
        search={"lr": {"low": 1e-10, "high": 2e-10}, "batch_size": 32, "weight_decay": 0.0},
        baseline={"lr": 1e-9},
        fidelity={"axis": "samples", "max": 2560, "reports": 5},
        budget={"trials": 2},
        confirm={"top": 1, "seeds": 2},
    )

    assert result.verdict == "no_recommendation"
    codes = [finding.code for finding in result.diagnosis]
    assert codes[0] in ("not_significant", "baseline_is_best")
    assert "learning_rate_too_low" in codes
    assert all(finding.action for finding in result.diagnosis)
    assert result.device_seconds > sum(ended.probe.device_seconds for ended in study.observer.ended if ended.probe)
