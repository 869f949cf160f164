"""Trials, curves, confirmations, recipes, workloads, runners, metrics: what a study leaves, seen over HTTP."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from service.models import Event, Runner
from service.recorder import Recorder
from service.store import runners
from tests.service.support import (
    PROBE,
    SPEC,
    Service,
    add_job,
    confirmation,
    ended,
    point,
    recipe,
    result,
    started,
    take,
)
from tuner.jobspec import ResolvedJob
from tuner.records import Finding, Outcome, Phase, ProbeRecord, StopReason


def recorder(service: Service, spec: dict[str, object] | None = None) -> tuple[str, Recorder]:
    job_id = add_job(service.database, spec=spec)
    claim = take(service.database)
    resolved = ResolvedJob.from_json(claim.job.resolved)
    return job_id, Recorder(service.database, claim.lease, claim.job, resolved, lambda: False)


def play(study: Recorder) -> None:
    """A short study: a baseline, a better trial, one that diverged, one still running."""
    study.phase_started(Phase.SEARCH, 4)
    study.trial_started(started(0, is_baseline=True))
    study.points_reported(0, [point(1, 0.9), point(2, 0.5)])
    study.trial_ended(ended(0, 0.5))
    study.trial_started(started(1))
    study.points_reported(1, [point(1, 0.3)])
    study.trial_ended(ended(1, 0.3))
    study.trial_started(started(2))
    study.points_reported(2, [point(1, math.inf), point(2, math.nan), point(3, -math.inf)])
    study.trial_ended(ended(2, math.nan, Outcome.DIVERGED))
    study.trial_started(started(3))
    study.recipes_found([recipe(1)])


def fitted(micro_batch: int = 16, limit_mib: int = 10) -> dict[str, Any]:
    proof = {"micro_batch": micro_batch, "fits": True, "peak_bytes": 9 << 20}
    return {
        "state": "done",
        "reason": None,
        "device": "test CPU",
        "fingerprint": "f" * 16,
        "precision": "fp32",
        "checkpointing": False,
        "without_checkpointing": None,
        "limit_bytes": limit_mib << 20,
        "cap_bytes": int(0.92 * (limit_mib << 20)),
        "micro_batch": micro_batch,
        "peak_bytes": 9 << 20,
        "samples_per_s": 1234.5,
        "left_out": [],
        "proofs": [proof],
    }


def test_what_fits_is_shown_and_kept_beyond_its_job(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    study.fit_measured(fitted(8), PROBE)
    study.fit_measured(fitted(16), PROBE)
    study.fit_measured(fitted(64, 40), PROBE)

    with any_service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["fit"]["micro_batch"] == 64
        page = client.get("/v1/frontiers", params={"workload": "quadratic"}).json()
        assert [each["micro_batch"] for each in page["items"]] == [64, 16]
        assert page["items"][1]["peak_bytes"] == 9 << 20
        assert client.get("/v1/frontiers", params={"device": "another"}).json()["items"] == []
        assert client.get("/v1/frontiers", params={"cursor": "nonsense"}).status_code == 422


def test_that_nothing_fits_without_checkpointing_is_kept_for_the_next_job(any_service: Service) -> None:
    _, study = recorder(any_service)
    died = {"micro_batch": 1, "fits": False, "peak_bytes": None}
    without = {**fitted(), "micro_batch": None, "peak_bytes": None, "samples_per_s": None, "proofs": [died]}
    study.fit_measured({**fitted(), "checkpointing": True, "without_checkpointing": without}, PROBE)

    with any_service.client("read") as client:
        page = client.get("/v1/frontiers", params={"workload": "quadratic"}).json()
    found = [(each["checkpointing"], each["micro_batch"], each["proofs"]) for each in page["items"]]
    assert found == [(False, 0, [died]), (True, 16, fitted()["proofs"])]


def test_a_running_job_shows_its_progress(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    play(study)
    with any_service.client("read") as client:
        job = client.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["phase"]) == ("running", "search")
    assert job["progress"] == {"done": 3, "total": 4}
    assert job["outcomes"] == {"ok": 2, "diverged": 1}
    assert job["baseline"] == {"trial": 0, "value": 0.5, "value_kind": "finite"}
    assert job["best"] == {"trial": 1, "value": 0.3, "value_kind": "finite"}
    assert job["spend"]["device_seconds"] == 6.0


def test_trials_come_with_their_curves_and_values_that_json_cannot_hold_are_null(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    play(study)
    with any_service.client("read") as client:
        trials = client.get(f"/v1/jobs/{job_id}/trials").json()["items"]
        assert client.get(f"/v1/jobs/{job_id}/trials/2").json() == trials[2]
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
    assert [trial["state"] for trial in trials] == ["ended", "ended", "ended", "running"]
    assert [(each["value"], each["value_kind"]) for each in trials[2]["curve"]] == [
        (None, "+inf"),
        (None, "nan"),
        (None, "-inf"),
    ]
    assert (trials[2]["value"], trials[2]["value_kind"], trials[2]["outcome"]) == (None, "nan", "diverged")
    assert trials[0]["curve"][1] == {"index": 2, "position": 2.0, "step": 20, "value": 0.5, "value_kind": "finite"}
    assert trials[0]["parameters"] == {"lr": 0.1, "note": None}
    assert trials[0]["probes"][0]["peak_memory_bytes"] == 1024
    assert trials[0]["warnings"] == {"repeated_step": 1}
    assert trials[0]["log_tail"] == "the last lines"


def test_trials_are_paged_by_number(service: Service) -> None:
    job_id, study = recorder(service)
    play(study)
    with service.client("read") as client:
        first = client.get(f"/v1/jobs/{job_id}/trials?limit=3").json()
        second = client.get(f"/v1/jobs/{job_id}/trials", params={"limit": 3, "cursor": first["next"]}).json()
        bad = client.get(f"/v1/jobs/{job_id}/trials", params={"cursor": "eA"})
    assert [trial["number"] for trial in first["items"] + second["items"]] == [0, 1, 2, 3]
    assert second["next"] is None
    assert bad.status_code == 422


@pytest.mark.parametrize("number", ["99", "-1", "x", "1.5", "9" * 40, "¹"])
def test_an_unknown_trial_is_404(service: Service, number: str) -> None:
    job_id, study = recorder(service)
    play(study)
    with service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}/trials/{number}").status_code == 404


@pytest.mark.parametrize("outcome", [each for each in Outcome if each is not Outcome.OK])
def test_a_baseline_that_did_not_end_well_has_no_value_to_compare_with(service: Service, outcome: Outcome) -> None:
    job_id, study = recorder(service)
    study.trial_started(started(0, is_baseline=True))
    nothing = {"trial": 0, "value": None, "value_kind": "missing"}
    with service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["baseline"] == nothing
        study.points_reported(0, [point(1, 26.76)])
        study.trial_ended(ended(0, 26.76, outcome))
        assert client.get(f"/v1/jobs/{job_id}").json()["baseline"] == nothing
        assert client.get("/v1/jobs").json()["items"][0]["baseline"] == nothing
        trial = client.get(f"/v1/jobs/{job_id}/trials/0").json()
    assert (trial["value"], trial["outcome"]) == (26.76, outcome.value)


def test_the_event_of_a_confirmation_that_failed_says_why(service: Service) -> None:
    job_id, study = recorder(service)
    failed = replace(confirmation(0, seed=3), outcome=Outcome.CRASHED, reason="ValueError: no data")
    study.confirmation_ended(failed)
    study.confirmation_ended(confirmation(1, seed=3))
    with service.database.read() as session:
        rows = session.scalars(
            sa.select(Event).where(Event.job_id == job_id, Event.type == "trial").order_by(Event.seq)
        )
        reasons = [row.data["reason"] for row in rows]
    assert reasons == ["ValueError: no data", None]


def test_a_lost_trial_is_not_counted_as_done(service: Service) -> None:
    job_id, study = recorder(service)
    study.trial_started(started(0))
    study.trial_ended(ended(0, None, Outcome.LOST))
    with service.client("read") as client:
        job = client.get(f"/v1/jobs/{job_id}").json()
    assert job["progress"]["done"] == 0
    assert job["outcomes"] == {"lost": 1}


def test_confirmations_are_listed(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    study.confirmation_ended(confirmation(0, seed=2**40))
    study.confirmation_ended(confirmation(1, seed=8, value=math.nan))
    with any_service.client("read") as client:
        items = client.get(f"/v1/jobs/{job_id}/confirmations").json()["items"]
    assert [(each["trial"], each["seed"], each["is_baseline"]) for each in items] == [(0, 2**40, True), (1, 8, False)]
    assert (items[1]["value"], items[1]["value_kind"], items[1]["split"]) == (None, "nan", "test")


def test_recipes_are_ranked_and_complete(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    play(study)
    study.recipes_found([recipe(3, rank=2), recipe(1, rank=1)])
    with any_service.client("read") as client:
        items = client.get(f"/v1/jobs/{job_id}/recipes").json()["items"]
        assert client.get(f"/v1/recipes/{items[0]['id']}").json() == items[0]
    assert [(each["trial"], each["rank"]) for each in items] == [(1, 1), (3, 2)]
    assert items[0]["interval"] == [0.1, 0.3]
    assert (items[0]["status"], items[0]["workload"], items[0]["device"]) == ("proven", "quadratic", "cpu")


def test_a_recipe_keeps_its_id_while_its_trial_is_recommended(service: Service) -> None:
    job_id, study = recorder(service)

    def ids() -> dict[int, str]:
        with service.client("read") as client:
            return {each["trial"]: each["id"] for each in client.get(f"/v1/jobs/{job_id}/recipes").json()["items"]}

    study.recipes_found([recipe(1, 1), recipe(2, 2)])
    before = ids()
    study.recipes_found([recipe(3, 1), recipe(1, 2)])
    after = ids()
    assert after[1] == before[1]
    assert set(after) == {1, 3}


def test_recipes_of_all_jobs_can_be_filtered(service: Service) -> None:
    for _ in range(2):
        _, study = recorder(service)
        study.finish(result())
    with service.client("read") as client:
        assert len(client.get("/v1/recipes?workload=quadratic&device=cpu").json()["items"]) == 2
        assert client.get("/v1/recipes?workload=other").json()["items"] == []
        assert client.get("/v1/recipes?device=H200").json()["items"] == []
        assert client.get("/v1/recipes?limit=1").json()["next"] is not None


@pytest.mark.parametrize(
    ("format_", "media_type", "needle"),
    [
        ("yaml", "application/yaml", "batch_size: 32"),
        ("json", "application/json", '"batch_size": 32'),
        ("args", "text/plain", "--batch-size"),
        ("env", "text/plain", "32"),
    ],
)
def test_a_recipe_is_exported(service: Service, format_: str, media_type: str, needle: str) -> None:
    job_id, study = recorder(service)
    study.finish(result())
    with service.client("read") as client:
        recipe_id = client.get(f"/v1/jobs/{job_id}/recipes").json()["items"][0]["id"]
        answer = client.get(f"/v1/recipes/{recipe_id}/export", params={"format": format_})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(media_type)
    assert needle in answer.text.replace("_", "-") or needle in answer.text


def test_an_unknown_export_format_is_422_and_lists_the_valid_ones(service: Service) -> None:
    job_id, study = recorder(service)
    study.finish(result())
    with service.client("read") as client:
        recipe_id = client.get(f"/v1/jobs/{job_id}/recipes").json()["items"][0]["id"]
        answer = client.get(f"/v1/recipes/{recipe_id}/export?format=xml")
    assert answer.status_code == 422
    assert "yaml" in answer.json()["errors"][0]["message"]


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "succeeded"),
        ({"verdict": "no_recommendation", "recipes": []}, "succeeded"),
        ({"stop_reason": StopReason.CANCELLED}, "cancelled"),
        ({"stop_reason": StopReason.FAILURES, "failed": True, "error": "5 crashes"}, "failed"),
    ],
)
def test_a_finished_job_says_how_it_ended(service: Service, changes: dict[str, Any], state: str) -> None:
    job_id, study = recorder(service)
    play(study)
    outcome = result(**{"reason": changes.pop("stop_reason", StopReason.TRIALS), **changes})
    study.finish(outcome)
    with service.client("read") as client:
        job = client.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["stop_reason"], job["verdict"]) == (state, outcome.stop_reason, outcome.verdict)
    assert job["error"] == outcome.error
    assert job["diagnosis"][0]["code"] == "at_the_edge"
    assert job["phase"] is None
    assert job["ended_at"] is not None
    assert job["waiting_for"] is None


def test_cost_is_known_when_the_budget_names_a_price(service: Service) -> None:
    spec = {**SPEC, "budget": {"trials": 4, "cost": {"amount": 5, "per_device_hour": 3600}}}
    job_id, study = recorder(service, spec)
    study.trial_started(started(0))
    study.trial_ended(ended(0))
    with service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["spend"]["cost"] == pytest.approx(2.0)


def test_the_best_of_a_maximized_metric_is_the_largest(service: Service) -> None:
    spec = {**SPEC, "objective": {"metric": "val_loss", "direction": "maximize"}}
    job_id, study = recorder(service, spec)
    for number, value in enumerate([0.3, 0.9, 0.5]):
        study.trial_started(started(number))
        study.trial_ended(ended(number, value))
    with service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}").json()["best"]["trial"] == 1


def test_what_a_training_script_prints_cannot_break_the_database(any_service: Service) -> None:
    job_id, study = recorder(any_service)
    study.trial_started(started(0))
    nasty = ended(0)
    study.trial_ended(
        type(nasty)(
            0, Outcome.CRASHED, "NUL \x00 and \udcff", nasty.value, "log \x00 \ud800", None, {}, {"g": math.nan}
        )
    )
    with any_service.client("read") as client:
        trial = client.get(f"/v1/jobs/{job_id}/trials/0").json()
    assert "NUL" in trial["reason"]
    assert trial["health"] == {"g": None}


def test_workloads_are_described(shared: Service) -> None:
    with shared.client("read") as client:
        names = [each["name"] for each in client.get("/v1/workloads").json()["items"]]
        assert "digits-cnn" in names
        workload = client.get("/v1/workloads/digits-cnn").json()
        assert client.get("/v1/workloads/nothing").status_code == 404
    assert workload["parameters"]["lr"]["summary"]
    assert workload["metric"]


def test_a_queued_job_says_what_it_waits_for(any_service: Service) -> None:
    job_id = add_job(any_service.database)

    def code() -> str:
        with any_service.client("read") as client:
            return str(client.get(f"/v1/jobs/{job_id}").json()["waiting_for"]["code"])

    assert code() == "no_runner"
    row = Runner(host="h", pid=1, version="0", state="idle", resources={})
    with any_service.database.write() as session:
        runners.register(session, row)
    assert code() == "starting"
    with any_service.database.write() as session:
        runners.beat(session, row, state="busy", job_id="01890000-0000-7000-8000-000000000000")
    assert code() == "runner_busy"


def test_a_queued_night_says_that_the_night_before_has_not_ended(any_service: Service) -> None:
    schedule_id = "01890000-0000-7000-8000-00000000000a"
    first, second = (add_job(any_service.database, schedule_id=schedule_id) for _ in range(2))
    with any_service.database.write() as session:
        runners.register(session, Runner(host="h", pid=1, version="0", state="idle", resources={}))
    with any_service.client("read") as client:
        waiting = {job["id"]: job["waiting_for"] for job in client.get("/v1/jobs").json()["items"]}
    assert waiting[first]["code"] == "starting"
    assert waiting[second]["code"] == "earlier_run"
    assert first in waiting[second]["message"]


def test_a_silent_runner_is_listed_as_lost(service: Service) -> None:
    import sqlalchemy as sa

    from service.database import now

    with service.database.write() as session:
        runners.register(session, Runner(host="h", pid=1, version="0", state="idle", resources={"cpus": 2}))
        session.execute(sa.update(Runner).values(last_seen=now(-60)))
    with service.client("read") as client:
        items = client.get("/v1/runners").json()["items"]
    assert [(each["state"], each["resources"]) for each in items] == [("lost", {"cpus": 2})]


def test_metrics_count_jobs_and_runners(service: Service) -> None:
    add_job(service.database)
    with service.client("read") as client:
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'x5tune_jobs{state="queued"} 1.0\n' in answer.text
    assert 'x5tune_runners{state="idle"} 0.0\n' in answer.text


def test_a_diagnosis_is_on_the_receipt_and_among_the_events(service: Service) -> None:
    job_id, study = recorder(service)
    play(study)
    with service.client("read") as client:
        before = client.get(f"/v1/jobs/{job_id}").json()["spend"]["device_seconds"]
        finding = Finding("clips", "It clips.", {}, "Raise grad_clip.")

        study.diagnosed([finding], ProbeRecord(12.0, 12.5, 0, 1, "test CPU"))

        assert client.get(f"/v1/jobs/{job_id}").json()["spend"]["device_seconds"] == pytest.approx(before + 12.5)
    with service.database.read() as session:
        texts = [event.data.get("text") for event in session.scalars(sa.select(Event).filter_by(job_id=job_id))]
    assert any("clips found" in str(text) for text in texts)
