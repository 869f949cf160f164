"""Our search in a job: what is paused, what goes on, what is told, and what that costs. No processes."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.tuner.support import RecordingObserver, ScriptedSlots, coordinate, job, long_bowl, memory, stored
from tests.tuner.test_resume import DyingStorage, RunnerDied, check_totals
from tuner.assignment import Assignment, ProbeEnd
from tuner.jobspec import ResolvedJob
from tuner.records import Outcome, StopReason, Value

TRIALS = 12


CONDITIONAL: dict[str, Any] = {
    "workload": {"command": ["python", "train.py", "--lr={lr}", "--kind={kind}", "--b={beta}"], "folder": "/"},
    "search": {
        "lr": {"low": 1e-4, "high": 0.1, "log": True},
        "kind": {"choices": ["a", "b", None]},
        "beta": {"low": 0.1, "high": 0.9, "when": {"kind": "a"}},
    },
    "baseline": {"lr": 0.01, "kind": "b"},
    "objective": {"metric": "val_loss", "direction": "minimize"},
    "fidelity": {"axis": "steps", "max": 640, "reports": 20},
}


def own(**spec: Any) -> ResolvedJob:
    return job(**{"pruner": "auto", "budget": {"trials": TRIALS}, **spec})


def played(folder: Path, one: ResolvedJob | None = None, slots: int = 1, **how: Any) -> Any:
    """A whole search: its slots, its observer and its study."""
    storage = memory()
    coordinator, observer = coordinate(one or own(), storage, slots=slots, checkpoints=folder)
    played = ScriptedSlots(coordinator, slots, curve=how.pop("curve", long_bowl), **how)
    played.play()
    return played, observer, storage


def probes_of(slots: ScriptedSlots) -> dict[int, list[Assignment]]:
    found = defaultdict(list)
    for given in slots.given:
        found[given.probe["trial"]].append(given)
    return found


def curves(observer: RecordingObserver) -> dict[int, list[int]]:
    found = defaultdict(list)
    for number, point in observer.points:
        found[number].append(point.index)
    return found


@pytest.mark.parametrize("slots", [1, 3])
def test_trials_pause_and_go_on_and_are_told_once(tmp_path: Path, slots: int) -> None:
    played_slots, observer, storage = played(tmp_path, slots=slots)

    assert observer.outcomes.total() == TRIALS
    assert sorted(ended.number for ended in observer.ended) == list(range(TRIALS))
    paused = [number for number, ended in observer.probes if ended.is_paused]
    assert len(paused) >= TRIALS - 1
    assert observer.gone_on
    for number, probes in probes_of(played_slots).items():
        assert [probe.key for probe in probes] == [f"t{number}", *(f"t{number}.{n}" for n in range(2, len(probes) + 1))]
        indexes = curves(observer)[number]
        assert indexes == list(range(1, len(indexes) + 1)), "nothing twice, nothing left out"
    assert not [entry for entry in tmp_path.iterdir() if any(entry.iterdir())]
    assert {trial.state for trial in stored(storage)} == {TrialState.COMPLETE, TrialState.PRUNED}
    check_totals(storage, TRIALS)


def test_the_baseline_is_first_and_runs_to_its_end_in_one_go(tmp_path: Path) -> None:
    played_slots, observer, _ = played(tmp_path)

    assert observer.started[0].is_baseline
    assert [given.key for given in played_slots.given].count("t0") == 1
    assert curves(observer)[0] == list(range(1, 21))
    assert observer.ended[0].number == 0


def test_a_search_costs_far_less_than_its_trials_and_finds_the_best_all_the_same(tmp_path: Path) -> None:
    played_slots, observer, storage = played(tmp_path, own(budget={"trials": 24}))

    result = played_slots.coordinator.result()
    full_runs = len(observer.points) / 20
    assert full_runs < 24 / 2
    assert abs(result.recipes[0].parameters["lr"] - 0.01) < 1e-3
    assert len(stored(storage)) == 24
    assert result.stop_reason == StopReason.TRIALS
    assert result.device_seconds == pytest.approx(
        sum(end.probe.device_seconds for _, end in observer.probes)
        + sum(end.probe.device_seconds for end in observer.ended if end.probe is not None)
    )


def test_what_is_paused_at_the_end_is_told_pruned_with_where_it_stands(tmp_path: Path) -> None:
    _, observer, _ = played(tmp_path)

    left = [ended for ended in observer.ended if ended.outcome == Outcome.PRUNED]
    assert left
    for ended in left:
        assert ended.reason is not None
        assert ended.reason.startswith("paused at ")
        assert "% of its length: val_loss = " in ended.reason
        assert " is behind " in ended.reason
        assert ended.probe is None


def test_one_trial_at_least_is_seen_at_its_full_length_besides_the_baseline(tmp_path: Path) -> None:
    _, observer, _ = played(tmp_path)

    assert observer.outcomes["ok"] >= 2


def test_a_recipe_says_after_how_much_of_a_full_run_its_value_was_seen(tmp_path: Path) -> None:
    played_slots, observer, _ = played(tmp_path)

    recipes = played_slots.coordinator.result().recipes
    seen = {recipe.trial: recipe.spend["full_runs"] for recipe in recipes}
    assert seen == {trial: max(curves(observer)[trial]) / 20 for trial in seen}
    baseline = {point.index: point.value.number for number, point in observer.points if number == 0}
    assert [recipe.baseline_value for recipe in recipes] == [baseline[round(seen[r.trial] * 20)] for r in recipes]


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_a_metric_may_be_better_higher(tmp_path: Path, direction: str) -> None:
    sign = 1 if direction == "minimize" else -1
    one = own(objective={"metric": "val_loss", "direction": direction})
    played_slots, _, _ = played(tmp_path, one, curve=lambda run: [sign * value for value in long_bowl(run)])

    recipe = played_slots.coordinator.result().recipes[0]
    assert abs(recipe.parameters["lr"] - 0.01) < 0.009
    assert recipe.difference is not None
    assert recipe.difference > 0


def test_the_same_seed_decides_the_same_with_one_worker(tmp_path: Path) -> None:
    runs = []
    for turn in range(2):
        played_slots, observer, _ = played(tmp_path / str(turn))
        runs.append([(given.key, given.probe["parameters"]) for given in played_slots.given])
        assert observer.outcomes.total() == TRIALS

    assert runs[0] == runs[1]


def test_a_workload_that_cannot_be_paused_is_stopped_instead(tmp_path: Path) -> None:
    played_slots, observer, _ = played(tmp_path, can_pause=False)

    assert observer.probes == []
    assert all(len(probes) == 1 for probes in probes_of(played_slots).values())
    stopped = [ended for ended in observer.ended if ended.outcome == Outcome.PRUNED]
    assert stopped
    assert all(" is behind " in (ended.reason or "") for ended in stopped)
    assert observer.outcomes.total() == TRIALS


def test_what_diverged_or_crashed_is_not_recommended(tmp_path: Path) -> None:
    def curve(assignment: Assignment) -> list[float]:
        is_bad = assignment.probe["parameters"]["lr"] > 0.1
        return [float("nan")] if is_bad else long_bowl(assignment)

    def end(assignment: Assignment) -> ProbeEnd | None:
        is_third = assignment.probe["trial"] == 3 and assignment.mark is None
        return ProbeEnd(Outcome.CRASHED, "as the test wants it", Value.of(None)) if is_third else None

    played_slots, observer, storage = played(
        tmp_path, curve=lambda run: [] if run.probe["trial"] == 3 else curve(run), end=end
    )

    assert observer.outcomes["crashed"] == 1
    assert observer.outcomes.total() == TRIALS
    recommended = {recipe.trial for recipe in played_slots.coordinator.result().recipes}
    diverged = {ended.number for ended in observer.ended if ended.outcome == Outcome.DIVERGED}
    assert not recommended & (diverged | {3})
    assert stored(storage)[3].state == TrialState.FAIL


@pytest.mark.parametrize("can_pause", [True, False], ids=["pausing", "stop-only"])
@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT])
def test_a_search_leaves_rates_at_which_the_code_fails(tmp_path: Path, outcome: Outcome, *, can_pause: bool) -> None:
    """As losses do that refuse what a high rate has made of the weights: here at two fifths of all rates."""

    def fails(assignment: Assignment) -> bool:
        return bool(assignment.probe["parameters"]["lr"] > 0.1)

    def end(assignment: Assignment) -> ProbeEnd | None:
        return ProbeEnd(outcome, "ValueError: not finite", Value.of(None)) if fails(assignment) else None

    def curve(assignment: Assignment) -> list[float]:
        return [] if fails(assignment) else long_bowl(assignment)

    failed = []
    for seed in range(6):
        search = {"lr": {"low": 1e-4, "high": 10.0, "log": True}}
        one = own(search=search, baseline={"lr": 0.001}, budget={"trials": 24}, seed=seed)
        slots, observer, _ = played(tmp_path / str(seed), one, curve=curve, end=end, can_pause=can_pause)
        assert slots.coordinator.result().stop_reason == StopReason.TRIALS
        failed.append(observer.outcomes[str(outcome)])
    assert sum(failed) <= 0.2 * 6 * 24, failed


def test_over_the_limit_the_worst_paused_trials_give_up_their_checkpoints(tmp_path: Path) -> None:
    most: list[int] = []
    observer = RecordingObserver()
    observer.at["trial_ended"] = lambda: most.append(sum(len(list(d.iterdir())) for d in tmp_path.iterdir()))
    coordinator, _ = coordinate(own(limits={"checkpoints_mib": 0.5}), memory(), observer=observer, checkpoints=tmp_path)
    ScriptedSlots(coordinator, curve=long_bowl).play()

    room = [ended for ended in observer.ended if "had to make room (limits.checkpoints_mib = 0.5)" in str(ended.reason)]
    assert room
    assert {ended.outcome for ended in room} == {Outcome.PRUNED}
    assert max(most) <= 6  # of 0.1 MB each
    assert observer.outcomes.total() == TRIALS


def test_no_room_for_checkpoints_means_that_nothing_is_paused(tmp_path: Path) -> None:
    _, observer, _ = played(tmp_path, own(limits={"checkpoints_mib": 0}))

    assert observer.probes == []
    assert observer.outcomes.total() == TRIALS


def test_a_save_that_fails_stops_its_trial_and_the_third_in_a_row_stops_pausing(tmp_path: Path) -> None:
    played_slots, observer, _ = played(
        tmp_path, save=lambda _: ProbeEnd(Outcome.CRASHED, "OSError: disk full", Value.of(None))
    )

    failed = [ended for ended in observer.ended if "its checkpoint could not be saved" in str(ended.reason)]
    assert len(failed) == 3
    assert {(ended.outcome, "OSError: disk full" in str(ended.reason)) for ended in failed} == {(Outcome.PRUNED, True)}
    assert observer.probes == []
    assert observer.outcomes.total() == TRIALS
    assert not played_slots.coordinator.result().failed


def test_a_checkpoint_that_the_runner_cannot_see_is_none(tmp_path: Path) -> None:
    class Elsewhere(ScriptedSlots):
        def _paused(self, busy: Any) -> Any:
            report = super()._paused(busy)
            shutil.rmtree(busy.assignment.probe["checkpoint_dir"])
            return report

    coordinator, observer = coordinate(own(), memory(), checkpoints=tmp_path)
    Elsewhere(coordinator, curve=long_bowl).play()

    said = [str(ended.reason) for ended in observer.ended if "could not be saved" in str(ended.reason)]
    assert len(said) == 3
    assert "X5TUNE_HOME has to be shared" in said[0]
    assert observer.outcomes.total() == TRIALS


def test_a_checkpoint_that_does_not_load_has_its_trial_start_over_once(tmp_path: Path) -> None:
    def end(assignment: Assignment) -> ProbeEnd | None:
        is_torn = assignment.mark is not None
        return ProbeEnd(Outcome.CRASHED, "CheckpointError: torn", Value.of(None)) if is_torn else None

    played_slots, observer, _ = played(tmp_path, curve=lambda run: long_bowl(run)[: 0 if run.mark else 20], end=end)

    over = [(number, ended) for number, ended in observer.probes if "starts over" in str(ended.reason)]
    assert over
    assert len({number for number, _ in over}) == len(over)
    again = {number: probes for number, probes in probes_of(played_slots).items() if number in dict(over)}
    assert all(probes[2].mark is None for probes in again.values())
    assert observer.outcomes.total() == TRIALS


def test_where_no_checkpoint_loads_no_trial_is_lost_and_the_third_in_a_row_stops_pausing(tmp_path: Path) -> None:
    def end(assignment: Assignment) -> ProbeEnd | None:
        return ProbeEnd(Outcome.CRASHED, "load raised", Value.of(None)) if assignment.mark is not None else None

    played_slots, observer, _ = played(tmp_path, curve=lambda run: long_bowl(run)[: 0 if run.mark else 20], end=end)

    assert observer.outcomes["crashed"] == 0
    over = [number for number, ended in observer.probes if "starts over" in str(ended.reason)]
    third = played_slots.given.index(probes_of(played_slots)[over[2]][2])
    begun = {given.probe["trial"] for given in played_slots.given[:third]}
    later = {given.probe["trial"] for given in played_slots.given[third:]} - begun
    assert later
    assert not later & {number for number, _ in observer.probes}
    assert observer.outcomes.total() == TRIALS


def test_a_checkpoint_larger_than_the_limit_stops_pausing(tmp_path: Path) -> None:
    _, observer, _ = played(tmp_path, own(limits={"checkpoints_mib": 0.05}))

    room = [ended for ended in observer.ended if "had to make room" in str(ended.reason)]
    assert len(room) == 1
    assert observer.outcomes.total() == TRIALS


def test_the_best_of_what_is_paused_at_the_end_is_not_said_to_be_behind(tmp_path: Path) -> None:
    _, observer, _ = played(tmp_path, own(budget={"full_runs": 2.0, "trials": None}, confirm={"top": 0}))

    told = [str(ended.reason) for ended in observer.ended if "paused at" in str(ended.reason)]
    assert not any("behind 0" in reason for reason in told)
    assert any("ahead of the others, and the search ended before it could go on" in reason for reason in told)


def test_a_slot_that_dies_under_a_resumed_trial_costs_only_what_came_after_its_pause(tmp_path: Path) -> None:
    died: list[str] = []

    def end(assignment: Assignment) -> ProbeEnd | None:
        if assignment.mark is None or died:
            return None
        died.append(assignment.key)
        return ProbeEnd(Outcome.LOST, "gone", Value.of(None))

    played_slots, observer, _ = played(
        tmp_path, curve=lambda run: long_bowl(run)[: run.mark.index if run.mark and not died else 20], end=end
    )

    assert died
    assert observer.outcomes["lost"] == 0
    number = int(died[0][1:].partition(".")[0])
    probes = probes_of(played_slots)[number]
    at = next(place for place, probe in enumerate(probes) if probe.key == died[0])
    assert probes[at].mark == probes[at + 1].mark
    assert observer.outcomes.total() == TRIALS


def test_a_cancelled_job_ends_what_is_paused_too(tmp_path: Path) -> None:
    storage = memory()
    coordinator, observer = coordinate(own(), storage, checkpoints=tmp_path)
    slots = ScriptedSlots(coordinator, curve=long_bowl)
    slots.play(until=lambda: len(observer.probes) > 4)
    observer.stop = StopReason.CANCELLED
    coordinator._asked_at = float("-inf")
    slots.play()

    assert coordinator.result().stop_reason == StopReason.CANCELLED
    assert TrialState.RUNNING not in {trial.state for trial in stored(storage)}
    assert observer.outcomes["cancelled"] >= 4


def test_a_budget_of_full_runs_is_kept_with_pauses(tmp_path: Path) -> None:
    _, observer, storage = played(tmp_path, own(budget={"full_runs": 5, "trials": None}))

    assert 5 <= len(observer.points) / 20 < 5.2
    assert TrialState.RUNNING not in {trial.state for trial in stored(storage)}


def test_a_small_space_is_searched_to_its_last_configuration(tmp_path: Path) -> None:
    search = {"lr": {"choices": [0.001, 0.01]}, "batch_size": {"choices": [16, 64]}, "weight_decay": 0.0}
    played_slots, observer, _ = played(tmp_path, own(search=search))

    assert observer.outcomes.total() == 4
    assert played_slots.coordinator.result().stop_reason == StopReason.SPACE_EXHAUSTED


# The runner dies


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("turns", [5, 30, 60, 90, 120])
def test_what_is_paused_when_its_runner_dies_goes_on_from_its_checkpoint(
    tmp_path: Path, slots: int, turns: int
) -> None:
    storage = memory()
    first, seen = coordinate(own(), storage, slots=slots, checkpoints=tmp_path)
    half = ScriptedSlots(first, slots, curve=long_bowl)
    for _ in range(turns):
        half.turn()
    open_now = {one.number for one in seen.started} - {one.number for one in seen.ended}
    kept = {number for number in open_now if (tmp_path / str(number)).exists()}

    second, observer = coordinate(own(), storage, slots=slots, checkpoints=tmp_path)
    rest = ScriptedSlots(second, slots, curve=long_bowl)
    rest.play()

    check_totals(storage, TRIALS)
    assert {ended.number for ended in observer.ended if ended.outcome == Outcome.LOST} == open_now - kept
    for probes in probes_of(rest).values():
        assert probes[0].mark is not None or probes[0].probe["trial"] not in kept
    assert not [entry for entry in tmp_path.iterdir() if any(entry.iterdir())]


@pytest.mark.parametrize("after", [False, True])
def test_a_death_between_any_two_writes_of_a_search_with_pauses_loses_nothing(tmp_path: Path, after: bool) -> None:
    for writes in range(after, 130, 4):
        storage, folder = DyingStorage(), tmp_path / f"{writes}"
        storage.writes_left, storage.after = writes, after
        with contextlib.suppress(RunnerDied):
            coordinator, _ = coordinate(own(), storage, slots=2, checkpoints=folder)
            ScriptedSlots(coordinator, 2, curve=long_bowl).play()
            assert writes > 90
            break
        storage.writes_left = None

        second, observer = coordinate(own(), storage, slots=2, checkpoints=folder)
        ScriptedSlots(second, 2, curve=long_bowl).play()

        check_totals(storage, TRIALS)
        assert len({one.number for one in observer.ended}) == len(observer.ended)


def test_what_was_to_be_confirmed_is_what_the_next_runner_confirms(tmp_path: Path) -> None:
    one, storage = own(confirm={"top": 2, "seeds": 5}), memory()
    first, seen = coordinate(one, storage, slots=2, checkpoints=tmp_path)
    ScriptedSlots(first, 2, curve=long_bowl).play(until=lambda: len(seen.confirmations) == 7)

    second, observer = coordinate(one, storage, slots=2, confirmations=list(seen.confirmations), checkpoints=tmp_path)
    ScriptedSlots(second, 2, curve=long_bowl).play()

    runs = [(run.trial, run.seed) for run in [*seen.confirmations, *observer.confirmations]]
    assert len(runs) == len(set(runs))
    assert len({trial for trial, _ in runs}) == 3
    assert observer.started == []


@pytest.mark.parametrize(
    "odd",
    [
        {"fidelity": {"axis": "samples", "max": 640, "reports": 1}},
        {"fidelity": {"axis": "samples", "max": 640, "reports": 2}},
        {"search": {"lr": 0.01, "batch_size": 64, "weight_decay": 0.0}},
        CONDITIONAL,
        {"baseline": {"lr": 5.0}, "search": {"lr": {"low": 1e-4, "high": 0.1, "log": True}}},
    ],
    ids=["one-report", "two-reports", "nothing-to-search", "conditional", "baseline-outside"],
)
def test_an_odd_job_comes_to_its_end(tmp_path: Path, odd: dict[str, Any]) -> None:
    def curve(assignment: Assignment) -> list[float]:
        lr = assignment.probe["parameters"].get("lr", 0.02)
        reports = assignment.probe["fidelity"]["reports"]
        return [abs(lr - 0.01) + 1.0 / index for index in range(1, reports + 1)]

    played_slots, observer, storage = played(tmp_path, own(**odd), curve=curve, slots=2)

    assert played_slots.coordinator.result().verdict is not None
    assert {trial.state for trial in stored(storage)} <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len({ended.number for ended in observer.ended}) == len(observer.ended)


def test_a_first_run_that_shows_how_long_a_full_run_is_is_followed_by_a_search_with_pauses(tmp_path: Path) -> None:
    one = own()
    one = dataclasses.replace(one, fidelity=dataclasses.replace(one.fidelity, max=math.inf))
    played_slots, observer, _ = played(tmp_path, one)

    assert observer.outcomes.total() == TRIALS
    assert observer.gone_on
    assert played_slots.coordinator.result().recipes
