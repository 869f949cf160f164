"""Phase `fit` in a study: what it runs, what follows from it, taking it up again, giving it up."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import RecordingObserver, coordinate, memory, play_with
from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.coordinator import Coordinator
from tuner.device import Device
from tuner.fit_plan import MAX_PROOFS
from tuner.fit_subject import fingerprint, heaviest, subject_of
from tuner.jobspec import Range, ResolvedJob, UserCode
from tuner.phases import Decision
from tuner.records import Outcome, Phase, ProbeRecord, StopReason, Value
from tuner.spec import resolve

MIB = 1 << 20
CPU = Device("cpu", "test CPU")
Peak = Callable[[int], float]


def job(limit_mib: float | None = 100, **spec: Any) -> ResolvedJob:
    given: dict[str, Any] = {
        "workload": "digits-cnn",
        "confirm": {"seeds": 0},
        "budget": {"trials": 3},
        "limits": {"host_memory_mib": limit_mib},
        "search": {"batch_size": {"choices": [8, 16, 32, 64]}},
        **spec,
    }
    return resolve(given).job


def answer(assignment: Assignment, peak_mib: Peak, limit_mib: float = 100) -> SlotReport:
    """What a slot would report at the end of this run, on a device whose peaks are known: twice what tensors take."""
    probe = ProbeRecord(2.0, 2.0, 0, 1, "test CPU")
    end = ProbeEnd(Outcome.OK, None, Value.of(1.0))
    asked = assignment.probe.get("fit")
    if assignment.fit == "predict":
        assert asked is not None
        found = [
            {"micro_batch": m, "training_bytes": int(peak_mib(m) * 0.5 * MIB), "evaluation_bytes": MIB}
            for m in asked["predict"]
        ]
        return SlotReport((), 0.0, probe, "", end=end, fit={"stage": None, "predictions": found})
    if assignment.fit == "prove":
        peak = peak_mib(assignment.probe["derived"]["micro_batch"])
        measured = {"stage": "training step 2", "host_peak_bytes": int(min(peak, limit_mib) * MIB)}
        if peak > limit_mib:
            end = ProbeEnd(Outcome.OUT_OF_MEMORY, "MemoryError", Value.of(None))
            return SlotReport((), 0.0, probe, "", end=end, fit=measured)
        return SlotReport((), 0.0, probe, "", end=end, fit={**measured, "samples_per_s": 1000.0})
    end = ProbeEnd(Outcome.OK, None, Value.of(1.0 / (1 + assignment.probe["trial"])))
    return SlotReport((), assignment.probe["fidelity"]["max"], probe, "", end=end)


def play(coordinator: Coordinator, peak_mib: Peak, runs: int = 100) -> list[Assignment]:
    return play_with(coordinator, lambda assignment: answer(assignment, peak_mib), runs)


def test_the_search_runs_with_the_largest_micro_batch_that_is_proven() -> None:
    coordinator, observer = coordinate(job())

    given = play(coordinator, lambda size: 20 + 2 * size)

    assert observer.phases == [Phase.FIT, Phase.SEARCH]
    sizes = [(a.fit, a.probe["derived"]["micro_batch"]) for a in given if a.fit]
    assert sizes == [("predict", 8), ("prove", 16), ("predict", 32), ("prove", 32)]  # 16 is near what is foretold
    assert observer.fits[-1]["state"] == "done"
    assert observer.fits[-1]["micro_batch"] == 32
    assert observer.fits[-1]["next"]["micro_batch"] == 64
    searched = [started.derived for started in observer.started]
    assert {derived["micro_batch"] for derived in searched} <= {8, 16, 32}
    whole = [started for started in observer.started if started.parameters["batch_size"] == 64]
    assert all(started.derived["accumulation"] == 2 for started in whole)
    assert whole, "the baseline has 64"


def test_where_trials_may_be_paused_a_proof_saves_its_state_too_and_nothing_of_it_stays(tmp_path: Path) -> None:
    places = {}
    plain: dict[str, Any] = {"pruner": "none", "sampler": "random"}
    for name, spec in (("pausing", dict[str, Any]()), ("plain", plain)):
        coordinator, _ = coordinate(job(**spec), checkpoints=tmp_path / name)
        (tmp_path / name / "-1" / "0").mkdir(parents=True)
        given = play(coordinator, lambda size: 20 + 2 * size)
        places[name] = {a.fit: a.probe.get("checkpoint_dir") for a in given if a.fit}
        assert not (tmp_path / name / "-1").exists()

    place = str(tmp_path / "pausing" / "-1" / "0")
    assert places == {"pausing": {"predict": None, "prove": place}, "plain": {"predict": None, "prove": None}}


def test_a_recipe_carries_the_proof() -> None:
    coordinator, _ = coordinate(job())
    play(coordinator, lambda size: 20 + 2 * size)

    recipes = coordinator.result().recipes
    assert recipes
    for recipe in recipes:
        assert recipe.memory["proven_micro_batch"] == 32
        assert recipe.memory["proven_peak_bytes"] == 84 * MIB
        assert recipe.memory["limit_bytes"] == 100 * MIB


def ended_at_its_cap(assignment: Assignment) -> SlotReport:
    """As `answer`, of a device that takes more than is foretold, where proofs are ended when they are over."""
    foretold = assignment.fit == "predict"
    report = answer(assignment, lambda size: 10 + 1.5 * size if foretold else 30 + 2 * size)
    if assignment.cap_bytes is None or report.fit is None or report.fit["host_peak_bytes"] <= assignment.cap_bytes:
        return report
    fit = {"stage": "training step 2", "host_peak_bytes": assignment.cap_bytes + 1, "is_over": True}
    return dataclasses.replace(report, end=ProbeEnd(Outcome.OK, None, Value.of(None)), fit=fit)


def test_a_proof_that_was_ended_at_its_cap_does_not_fit_and_the_next_is_smaller() -> None:
    coordinator, observer = coordinate(job())

    play_with(coordinator, ended_at_its_cap, 100)

    proofs = observer.fits[-1]["proofs"]
    assert [(proof["micro_batch"], proof["fits"], proof["was_ended"]) for proof in proofs] == [
        (32, False, True),
        (16, True, False),
    ]
    assert proofs[0]["stage"] == "training step 2"
    assert proofs[0]["peak_bytes"] == int(0.92 * 100 * MIB) + 1
    assert observer.fits[-1]["micro_batch"] == 16


def test_without_a_limit_there_is_no_such_phase() -> None:
    coordinator, observer = coordinate(job(limit_mib=None))
    assert observer.phases == [Phase.SEARCH]
    assert play(coordinator, lambda size: size)[0].probe["derived"] == {
        "loss_scale": "auto",
        "micro_batch": 64,
        "accumulation": 1,
    }


def test_what_cannot_fit_at_all_is_no_recommendation_with_its_reason() -> None:
    coordinator, observer = coordinate(job())

    play(coordinator, lambda size: 300 + size)

    result = coordinator.result()
    assert observer.started == []
    assert (result.stop_reason, result.verdict) == (StopReason.SPACE_EXHAUSTED, "no_recommendation")
    assert [finding.code for finding in result.diagnosis] == ["does_not_fit"]
    assert "micro-batch of 1" in result.diagnosis[0].message
    assert "training step 2" in result.diagnosis[0].message


@pytest.mark.parametrize("runs", range(1, 4))
def test_another_attempt_goes_on_where_the_first_one_died(runs: int) -> None:
    storage, first = memory(), RecordingObserver()
    coordinator, _ = coordinate(job(), storage, observer=first)
    before = play(coordinator, lambda size: 20 + 2 * size, runs)
    stored = json.loads(json.dumps(first.fits[-1]))

    again, observer = coordinate(job(), storage, fit=stored)
    after = play(again, lambda size: 20 + 2 * size)

    whole, _ = coordinate(job())
    asked = [a.probe["fit"] for a in play(whole, lambda size: 20 + 2 * size) if a.fit]
    assert [a.probe["fit"] for a in (*before, *after) if a.fit] == asked
    assert {started.derived["micro_batch"] for started in observer.started} <= {8, 16, 32}
    assert again.result().device_seconds == pytest.approx(2.0 * (len(asked) + 3))


def tight(assignment: Assignment) -> SlotReport:
    """Of a device where nothing fits unless activations are computed again."""
    is_on = assignment.probe["derived"].get("checkpointing", False)
    return answer(assignment, lambda size: 20 + 2 * size if is_on else 300 + size)


def play_tight(coordinator: Coordinator, runs: int = 100) -> list[Assignment]:
    return play_with(coordinator, tight, runs)


def test_where_nothing_fits_activations_are_computed_again() -> None:
    coordinator, observer = coordinate(job())

    play_tight(coordinator)

    fit = observer.fits[-1]
    assert (fit["state"], fit["checkpointing"], fit["micro_batch"]) == ("done", True, 32)
    assert not any(proof["fits"] for proof in fit["without_checkpointing"]["proofs"])
    assert all(started.derived["checkpointing"] is True for started in observer.started)
    result = coordinator.result()
    assert [recipe.derived["checkpointing"] for recipe in result.recipes] == [True] * len(result.recipes)
    assert result.recipes[0].memory["checkpointing"] is True
    [said] = [finding for finding in result.diagnosis if finding.code == "activation_checkpointing"]
    assert "a third more time" in said.message


@pytest.mark.parametrize("runs", range(1, 6))
def test_another_attempt_goes_on_with_such_activations_too(runs: int) -> None:
    storage, first = memory(), RecordingObserver()
    coordinator, _ = coordinate(job(), storage, observer=first)
    before = play_tight(coordinator, runs)
    again, observer = coordinate(job(), storage, fit=json.loads(json.dumps(first.fits[-1])))
    after = play_tight(again)
    whole = play_tight(coordinate(job())[0])
    measured = [[a.probe["fit"] | a.probe["derived"] for a in runs if a.fit] for runs in ([*before, *after], whole)]
    assert measured[0] == measured[1]
    assert all(started.derived["checkpointing"] for started in observer.started)


def test_what_is_proven_with_such_activations_says_nothing_of_a_run_without() -> None:
    first, observer = coordinate(job(limits={"host_memory_mib": 100, "checkpointing": "always"}))
    given = play(first, lambda size: 20 + 2 * size)
    assert all(a.probe["derived"]["checkpointing"] for a in given)
    known = frontier_of(observer)
    assert known["checkpointing"] is True

    plain = play(coordinate(job(), frontiers=[known])[0], lambda size: 20 + 2 * size)
    assert any(a.fit == "prove" for a in plain)
    again = play(
        coordinate(job(limits={"host_memory_mib": 100, "checkpointing": "always"}), frontiers=[known])[0],
        lambda size: 20 + 2 * size,
    )
    assert not any(a.fit for a in again)


def test_a_later_job_does_not_try_again_without_where_nothing_fits() -> None:
    first, observer = coordinate(job())
    play_tight(first)
    fit = frontier_of(observer)
    nothing = {**fit, **fit["without_checkpointing"], "checkpointing": False, "micro_batch": 0}

    again, later = coordinate(job(), frontiers=[fit, nothing])
    assert not any(a.fit for a in play_tight(again))
    assert (later.fits[-1]["checkpointing"], later.fits[-1]["micro_batch"]) == (True, 32)
    [said] = [finding for finding in again.result().diagnosis if finding.code == "activation_checkpointing"]
    assert said.evidence["without"]["known"] == fit["without_checkpointing"]["proofs"]

    never = job(limits={"host_memory_mib": 100, "checkpointing": "never"})
    alone, third = coordinate(never, frontiers=[nothing])  # it would end by it, so it looks for itself
    play_tight(alone)
    assert third.fits[-1]["state"] == "infeasible"
    assert third.fits[-1]["proofs"]


def test_a_job_may_forbid_it() -> None:
    coordinator, observer = coordinate(job(limits={"host_memory_mib": 100, "checkpointing": "never"}))
    play_tight(coordinator)
    assert (observer.fits[-1]["state"], observer.fits[-1]["checkpointing"]) == ("infeasible", False)


def test_a_lost_run_is_asked_for_again() -> None:
    coordinator, _ = coordinate(job())
    first = coordinator.next()
    assert first is not None
    coordinator.on_lost(first.key, "the slot's process died")

    second = coordinator.next()

    assert second is not None
    assert second.key != first.key
    assert second.probe["fit"] == first.probe["fit"]


def test_cancelling_ends_a_proof_and_the_job() -> None:
    observer = RecordingObserver()
    coordinator, _ = coordinate(job(), observer=observer)
    first = coordinator.next()
    assert first is not None
    observer.stop = StopReason.CANCELLED
    coordinator._asked_at = float("-inf")
    running = dataclasses.replace(answer(first, lambda size: size), end=None, fit=None)

    assert coordinator.on_report(first.key, running) == Decision.STOP
    assert coordinator.next() is None
    assert coordinator.is_cancelled_and_done
    assert coordinator.result().stop_reason == StopReason.CANCELLED


def test_a_proof_that_fails_for_another_reason_leaves_the_matter_to_the_search() -> None:
    coordinator, observer = coordinate(job())
    for _ in range(2):
        assignment = coordinator.next()
        assert assignment is not None
        coordinator.on_report(assignment.key, answer(assignment, lambda size: 1))
    proof = coordinator.next()
    assert proof is not None and proof.fit == "prove"
    crash = ProbeEnd(Outcome.CRASHED, "ValueError: shapes differ", Value.of(None))
    report = SlotReport((), 0.0, ProbeRecord(1, 1, 1, 1, "test CPU"), "", end=crash, fit={"stage": "training step 1"})
    coordinator.on_report(proof.key, report)

    assert coordinator.next() is not None
    assert observer.phases == [Phase.FIT, Phase.SEARCH]
    assert observer.fits[-1]["state"] == "skipped"
    assert "training step 1" in observer.fits[-1]["reason"]
    assert observer.started[0].derived["micro_batch"] == 64


def test_a_workload_that_cannot_be_predicted_is_proven_all_the_same() -> None:
    coordinator, observer = coordinate(job())
    first = coordinator.next()
    assert first is not None
    crash = ProbeEnd(Outcome.CRASHED, "DynamicOutputShapeException", Value.of(None))
    report = SlotReport((), 0.0, ProbeRecord(1, 1, 1, 1, "test CPU"), "", end=crash, fit={"stage": None})
    coordinator.on_report(first.key, report)

    given = play(coordinator, lambda size: 20 + 2 * size)

    assert all(a.fit != "predict" for a in given)
    assert observer.fits[-1]["prediction_failure"] == "DynamicOutputShapeException"
    assert observer.fits[-1]["micro_batch"] == 32
    assert len(observer.fits[-1]["proofs"]) <= MAX_PROOFS


def after_fit(coordinator: Coordinator, runs: int = 1) -> Assignment:
    """The `runs`th run of the search or confirmation, once the fit is done and those before it have ended well."""
    while True:
        assignment = coordinator.next()
        assert assignment is not None
        runs -= assignment.fit is None
        if runs == 0:
            return assignment
        coordinator.on_report(assignment.key, answer(assignment, lambda size: 20 + 2 * size))


def out_of_memory(assignment: Assignment) -> SlotReport:
    end = ProbeEnd(Outcome.OUT_OF_MEMORY, "MemoryError", Value.of(None))
    return SlotReport((), 0.0, ProbeRecord(1.0, 1.0, 1, 1, "test CPU"), "", end=end)


def test_a_trial_that_is_out_of_memory_all_the_same_runs_once_more_in_smaller_pieces() -> None:
    coordinator, observer = coordinate(job())
    first = after_fit(coordinator)
    spent = observer.fits[-1]["device_seconds"]
    assert (first.probe["trial"], first.probe["derived"]["micro_batch"]) == (0, 32)

    assert coordinator.on_report(first.key, out_of_memory(first)) == Decision.CONTINUE
    again = coordinator.next()

    assert again is not None
    assert (again.probe["trial"], again.probe["derived"]["micro_batch"]) == (0, 16)
    assert again.probe["derived"]["accumulation"] == 4
    assert observer.ended == []
    assert [number for number, _ in observer.again] == [0]
    assert (observer.fits[-1]["micro_batch"], observer.fits[-1]["peak_bytes"]) == (16, None)
    coordinator.on_report(again.key, answer(again, lambda size: size))
    assert [ended.outcome for ended in observer.ended] == [Outcome.OK]
    later = play(coordinator, lambda size: size)
    assert {a.probe["derived"]["micro_batch"] for a in later} <= {8, 16}
    assert all(recipe.memory["proven_peak_bytes"] is None for recipe in coordinator.result().recipes)
    assert coordinator.result().device_seconds == spent + 1.0 + 3 * 2.0


def test_a_trial_that_is_out_of_memory_twice_has_ended_so() -> None:
    coordinator, observer = coordinate(job())
    first = after_fit(coordinator)
    coordinator.on_report(first.key, out_of_memory(first))
    again = coordinator.next()
    assert again is not None
    coordinator.on_report(again.key, out_of_memory(again))

    assert [(ended.number, ended.outcome) for ended in observer.ended] == [(0, Outcome.OUT_OF_MEMORY)]
    following = coordinator.next()
    assert following is not None and following.probe["trial"] == 1


def test_another_attempt_knows_where_the_frontier_was_put() -> None:
    storage, first = memory(), RecordingObserver()
    coordinator, _ = coordinate(job(), storage, observer=first)
    run = after_fit(coordinator)
    coordinator.on_report(run.key, out_of_memory(run))

    again, _ = coordinate(job(), storage, fit=json.loads(json.dumps(first.fits[-1])))

    retried = again.next()
    assert retried is not None and retried.probe["derived"]["micro_batch"] == 16


def test_a_confirmation_that_is_out_of_memory_is_made_again_in_smaller_pieces() -> None:
    coordinator, observer = coordinate(job(confirm={"top": 1, "seeds": 2}))
    first = after_fit(coordinator, 4)
    assert not first.judged
    coordinator.on_report(first.key, out_of_memory(first))

    again = coordinator.next()

    assert again is not None and not again.judged
    assert (again.probe["trial"], again.probe["seed"]) == (first.probe["trial"], first.probe["seed"])
    assert again.probe["derived"]["micro_batch"] < first.probe["derived"]["micro_batch"]
    coordinator.on_report(again.key, answer(again, lambda size: size))
    play(coordinator, lambda size: size)
    assert Outcome.OUT_OF_MEMORY not in [run.outcome for run in observer.confirmations]


def frontier_of(observer: RecordingObserver) -> dict[str, Any]:
    """What the service keeps of a job's phase `fit`."""
    return json.loads(json.dumps(observer.fits[-1]))  # type: ignore[no-any-return]


def test_a_later_job_on_the_same_starts_from_what_is_proven() -> None:
    first, observer = coordinate(job())
    play(first, lambda size: 20 + 2 * size)
    known = frontier_of(observer)

    again, later = coordinate(job(), frontiers=[known])

    assert all(a.fit is None for a in play(again, lambda size: 20 + 2 * size))
    assert later.phases == [Phase.FIT, Phase.SEARCH]
    assert (later.fits[-1]["state"], later.fits[-1]["micro_batch"], later.fits[-1]["proofs"]) == ("done", 32, [])
    assert {started.derived["micro_batch"] for started in later.started} <= {8, 16, 32}


def test_under_another_limit_earlier_proofs_correct_the_line() -> None:
    first, observer = coordinate(job())
    play(first, lambda size: 20 + 2 * size)
    known = frontier_of(observer)

    larger, later = coordinate(job(limit_mib=200), frontiers=[known])
    smaller, third = coordinate(job(limit_mib=70), frontiers=[known])

    play(larger, lambda size: 20 + 2 * size)
    play(smaller, lambda size: 20 + 2 * size)
    assert [proof["micro_batch"] for proof in later.fits[-1]["proofs"]] == [64]
    assert third.fits[-1]["micro_batch"] == 16
    assert third.fits[-1]["proofs"] == []


def test_what_was_proven_of_other_work_or_elsewhere_counts_for_nothing() -> None:
    first, observer = coordinate(job())
    play(first, lambda size: 20 + 2 * size)
    known = frontier_of(observer)

    for name in ("fingerprint", "device", "precision"):
        other, _ = coordinate(job(), frontiers=[{**known, name: "another"}])
        assert play(other, lambda size: 20 + 2 * size, runs=1)[0].fit == "predict"


def test_what_has_failed_later_is_not_tried_again() -> None:
    first, observer = coordinate(job())
    run = after_fit(first)
    first.on_report(run.key, out_of_memory(run))

    again, later = coordinate(job(), frontiers=[frontier_of(observer)])

    play(again, lambda size: 20 + 2 * size)
    assert later.fits[-1]["micro_batch"] == 16


def test_memory_that_grows_is_in_the_diagnosis_and_changes_nothing_else() -> None:
    seen = "memory grows by 512 KiB a step: train.py:31 makes what stays"
    coordinator, _ = coordinate(job())
    while not coordinator.is_finished:
        assignment = coordinator.next()
        if assignment is None:
            break
        report = answer(assignment, lambda size: 20 + 2 * size)
        coordinator.on_report(assignment.key, dataclasses.replace(report, health={"memory_growth": seen}))

    result = coordinator.result()
    assert [finding.code for finding in result.diagnosis] == ["memory_growth"]
    assert "train.py:31" in result.diagnosis[0].message
    assert result.verdict == "recommended"


def test_the_heaviest_configuration_is_proven() -> None:
    space = {
        "optimizer": {"choices": ["adamw", "sgd"]},
        "dropout": {"low": 0.0, "high": 0.5},
        "lr": {"low": 1e-4, "high": 1.0, "log": True},
    }
    a_job = job(search=space, baseline={"optimizer": "sgd", "dropout": 0.1})

    parameters = heaviest(a_job.space, a_job.baseline)

    assert (parameters["optimizer"], parameters["dropout"], parameters["lr"]) == ("adamw", 0.5, 1e-3)
    subject = subject_of(a_job, CPU)
    assert subject is not None and subject.parameters["lr"] < 1e-5


def test_a_whole_number_stays_one_in_the_heaviest_configuration() -> None:
    width = Range(16, 128, log=True, integer=True)

    assert isinstance(heaviest({"width": width}, {"width": 64})["width"], int)


def test_of_several_processes_the_share_of_one_is_measured() -> None:
    subject = subject_of(job(resources={"processes": 2}), CPU)

    assert subject is not None
    assert (subject.largest_batch, max(subject.sizes)) == (32, 32)


def test_two_copies_of_one_folder_have_the_same_fingerprint(tmp_path: Path) -> None:
    def of(name: str, *, is_copy: bool) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "train.py").write_text("def train(config, probe): ...")
        a_job = dataclasses.replace(job(), code=UserCode(str(folder), target="train.py:train"), snapshot=is_copy)
        return fingerprint(a_job, {})

    assert of("one", is_copy=True) == of("two", is_copy=True)
    assert of("one", is_copy=False) != of("two", is_copy=False)


def test_jobs_that_need_the_same_memory_have_the_same_fingerprint() -> None:
    def print_of(a_job: ResolvedJob) -> str:
        return fingerprint(a_job, heaviest(a_job.space, a_job.baseline))

    assert print_of(job(baseline={"lr": 0.1})) == print_of(job(search={"weight_decay": 0.2}))
    assert print_of(job(baseline={"optimizer": "sgd"})) != print_of(job())
