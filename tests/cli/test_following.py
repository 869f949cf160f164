"""What a job's events add up to, without a service and without a clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from tuner.spec import resolve
from x5tune import wording
from x5tune.following import Following
from x5tune.shapes import Event, Job

START = datetime(2027, 1, 1, tzinfo=UTC)


def job(**changes: Any) -> Job:
    resolved = resolve({"workload": "quadratic", "budget": {"trials": 10, "seconds": changes.pop("seconds", None)}})
    return cast(
        Job,
        {
            "id": "01890000-0000-7000-8000-00000000000a",
            "state": "running",
            "resolved": resolved.job.to_json(),
            "progress": {"done": 0, "total": 10},
            "started_at": START.isoformat(),
            "ended_at": None,
            "waiting_for": None,
            **changes,
        },
    )


def tell(following: Following, kind: str, at_s: float = 0.0, **data: Any) -> str | None:
    time = (START + timedelta(seconds=at_s)).isoformat()
    line = following.apply(cast(Event, {"id": 1, "type": kind, "time": time, "job_id": "x", "data": data}))
    return None if line is None else line.text


def end(following: Following, number: int, value: float | None, outcome: str = "ok", at_s: float = 0.0) -> str | None:
    kind = "missing" if value is None else "finite"
    return tell(following, "trial", at_s, number=number, state="ended", outcome=outcome, value=value, value_kind=kind)


def test_the_time_left_follows_from_the_pace_of_the_phase() -> None:
    following = Following(job())
    tell(following, "phase", 10, phase="search", total=10)
    for number in range(4):
        assert following.left_s(START + timedelta(seconds=20)) is None or number == 3
        end(following, number, 1.0)
    assert following.left_s(START + timedelta(seconds=30)) == 30.0


def test_a_budget_of_seconds_bounds_the_time_left() -> None:
    following = Following(job(seconds=100))
    assert following.left_s(START + timedelta(seconds=90)) == 10.0


def test_a_probe_out_of_memory_is_told_with_what_its_trial_goes_on_with() -> None:
    following = Following(job())
    derived = {"micro_batch": 8, "accumulation": 4, "loss_scale": "auto"}
    line = tell(
        following, "trial", number=3, state="running", probe="out_of_memory", reason="MemoryError", derived=derived
    )
    assert line == "trial 3: out of memory (MemoryError); once more with micro_batch=8 accumulation=4"
    assert following.running == {3}


def test_the_range_of_learning_rates_that_train_is_told_and_the_phase_goes_on() -> None:
    following = Following(job())
    tell(following, "phase", phase="search", total=10)
    found = {
        "state": "done",
        "low": 1e-4,
        "high": 0.316,
        "best": 0.01,
        "diverges_at": 1.0,
        "steps": 20,
        "rates": [{}] * 5,
        "reason": None,
    }
    assert tell(following, "phase", phase="search", range_test=found) == (
        "rates: lr from 0.0001 to 0.316 trains (of 5 rates, 20 steps each, 0.01 best); diverges at 1 and above"
    )
    skipped = {**found, "state": "skipped", "reason": "its run ended crashed: no"}
    assert (
        tell(following, "phase", phase="search", range_test=skipped) == "rates: not tested: its run ended crashed: no"
    )
    assert (following.phase, following.total) == ("search", 10)


def test_the_phase_fit_is_told_proof_by_proof_and_leaves_the_number_of_trials_alone() -> None:
    following = Following(job())
    died = {"micro_batch": 64, "fits": False, "peak_bytes": None, "stage": "evaluation after step 10"}
    fits = {"micro_batch": 32, "fits": True, "peak_bytes": 27 << 20, "stage": None}
    fit = {"state": "measuring", "reason": None, "limit_bytes": 30 << 20, "proof": died}

    assert tell(following, "phase", phase="fit", total=4) == (
        "fit: the largest micro-batch within the memory limit, with at most 4 proofs"
    )
    assert tell(following, "phase", phase="fit", total=4, done=1, fit=fit) == (
        "fit: a micro-batch of 64 runs out of memory in evaluation after step 10, under a limit of 30.0 MiB"
    )
    done = {**fit, "state": "done", "proof": fits}
    assert tell(following, "phase", phase="fit", total=4, done=2, fit=done) == (
        "fit: a micro-batch of 32 takes 27.0 MiB of 30.0 MiB; that is the largest"
    )
    known = {**done, "proof": None, "micro_batch": 32}
    assert tell(following, "phase", phase="fit", total=4, done=0, fit=known) == (
        "fit: a micro-batch of 32 fits, as an earlier job has proven"
    )
    assert tell(following, "phase", phase="fit", total=4, done=2, fit={**done, "lowered_to": 16}) == (
        "fit: at most a micro-batch of 16 from now on: what was proven has run out of memory"
    )
    assert following.total == 10


def test_a_lost_trial_is_counted_but_not_as_done() -> None:
    following = Following(job())
    end(following, 0, None, "lost")
    end(following, 1, 1.0)
    assert following.progress == (1, 10)
    assert dict(following.outcomes) == {"lost": 1, "ok": 1}


def test_a_job_that_changes_hands_says_so() -> None:
    following = Following(job())
    assert tell(following, "state", state="queued") == "queued"
    assert tell(following, "state", state="running", attempt=1) == "running"
    tell(following, "trial", number=0, state="running", is_baseline=True)
    assert tell(following, "state", state="queued", reason="handed back") == "queued again: handed back"
    assert following.running == set()
    assert tell(following, "state", state="running", attempt=2) == "running again (attempt 2)"


def test_confirmation_that_goes_on_keeps_what_it_has() -> None:
    following = Following(job())
    tell(following, "phase", phase="confirm", total=2)
    for seed in (1, 2):
        tell(following, "trial", confirmation=True, trial=1, seed=seed, outcome="ok", value=1.0, value_kind="finite")
    assert tell(following, "phase", phase="confirm", total=4) == "confirm: undecided, so 4 runs altogether"
    assert following.progress == (2, 4)


def test_the_best_is_the_highest_where_more_is_better() -> None:
    shown = job()
    shown["resolved"]["objective"]["direction"] = "maximize"
    following = Following(shown)
    tell(following, "trial", number=0, state="running", is_baseline=True)
    end(following, 0, 0.5)
    assert end(following, 1, 0.4) == "trial 1: ok, 0.4"
    assert end(following, 2, 0.75) == "trial 2: ok, 0.75, the best so far, 50 % better than the baseline"


def test_why_it_waits_is_said_once() -> None:
    following = Following(job())
    waiting = job(waiting_for={"code": "no_runner", "message": "No runner."})
    assert [line.text for line in following.refresh(waiting)] == ["waiting: No runner."]
    assert following.refresh(waiting) == []


def test_numbers_and_times_read_well() -> None:
    assert [wording.number(value) for value in (0.00012347, 16000.0, 1.5e12, 3, None)] == [
        "0.0001235", "16000", "1.5e+12", "3", "–",
    ]  # fmt: skip
    assert [wording.duration(value) for value in (0.4, 59, 80, 7300, 90000)] == [
        "0 s", "59 s", "1 min 20 s", "2 h 1 min", "1 d 1 h",
    ]  # fmt: skip
    assert wording.against(0.9, 1.0, "minimize") == "10 % better"
    assert wording.against(1.0, 1.0, "minimize") == "equal"
    assert wording.against(0.1, 0.0, "maximize") == "0.1 better"
    assert wording.clean("a\x1b[1m\u202eb\tc\n") == "a\N{REPLACEMENT CHARACTER}[1m\N{REPLACEMENT CHARACTER}b\tc\n"


def test_a_pause_is_told_and_counts_as_done_until_the_trial_goes_on() -> None:
    following = Following(job())
    tell(following, "phase", phase="search", total=10)
    tell(following, "trial", number=3, state="running")

    line = tell(following, "trial", number=3, state="paused", index=2, value=0.5, value_kind="finite")
    paused, done = set(following.paused), following.progress
    tell(following, "trial", number=3, state="running")

    assert line == "trial 3: paused at report 2, 0.5"
    assert (paused, done) == ({3}, (1, 10))
    assert (following.paused, following.progress) == (set(), (0, 10))
