"""Answers are written from rows; their schemas, which the OpenAPI description shows, say exactly what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy.orm import Session

from service import schemas
from service.ids import new_id
from service.models import Base, Confirmation, Frontier, Point, Recipe, Trace, Trial
from tests.service.support import SPEC, Service, new_job

ODD: dict[str, Any] = {
    'quote " back \\ slash /': "größe ☃ \U0001f600 </script>\n\t\x01",
    "numbers": [1e-05, 1e300, -0.0, 2**53 + 1, -(2**62), 10**30, 0.1 + 0.2],
    "none": None,
    "nested": {"empty": {}, "list": [], "yes": True},
}
MOMENT = datetime(2026, 3, 29, 1, 30, 0, 123999, UTC)
PRICED = {**SPEC, "budget": {"trials": 4, "cost": {"amount": 5, "per_device_hour": 3}}}
LEARNT = [{"job": new_id(), "workload": "quadratic", "trials": 3}]
WARNING = {"field": "search.lr", "message": 'is "odd"'}


def fill(session: Session) -> dict[str, str]:
    """A job with everything and one with nothing, a recipe and a frontier; their ids."""
    bare = new_job(session, name="bare").id
    whole = new_job(
        session,
        name='"whole" größe \U0001f600',
        spec=PRICED,
        estimate=ODD,
        warnings=[WARNING],
        diagnosis=[ODD],
        fit=ODD,
        range_test=ODD,
        learnt_from=LEARNT,
        started_at=MOMENT,
        **{"baseline_trial": 0, "best_trial": 1, "best_value": 1e-05, "state": "failed", "error": "line\nline"},
        **{"device_seconds": 36.5, "energy_j": 3.6e6, "measured_runs": 2, "unmeasured_runs": 1, "energy_reason": "why"},
    ).id
    of_whole = {"job_id": whole, "number": 1}
    common = {"parameters": ODD, "derived": ODD, "log_tail": "\x1b[31m ü"}
    recipe, frontier = new_id(), new_id()
    rows: list[Base] = [
        Trial(job_id=whole, number=0, is_baseline=True, outcome="crashed", value=0.5, value_kind="finite", **common),
        Trial(**of_whole, outcome="ok", value=None, value_kind="+inf", probes=[ODD], memory=ODD, health=ODD, **common),
        Confirmation(job_id=whole, trial=1, seed=5, is_baseline=False, outcome="ok", value=0.25, value_kind="finite",
                     split="test", probe=ODD, ended_at=MOMENT),
        Confirmation(job_id=whole, trial=1, seed=6, is_baseline=False, outcome="lost", value_kind="missing",
                     split="test", ended_at=MOMENT),
        Recipe(id=recipe, job_id=whole, trial=1, rank=1, status="proven", workload="ü", device="cpu", value=1.0,
               parameters=ODD, derived=ODD, interval=[0, 1e-05]),
        Frontier(id=frontier, job_id=whole, workload="ü", fingerprint="f", device="cpu", precision="fp32",
                 checkpointing=False, limit_bytes=2**40, cap_bytes=2**41, micro_batch=8, proofs=[ODD]),
    ]  # fmt: skip
    session.add_all(rows)
    session.flush()
    session.add(Trace(**of_whole, probe=0, trace=ODD))
    for index, (value, kind) in enumerate([(0.5, "finite"), (None, "nan")], 1):
        session.add(Point(**of_whole, index=index, position=0.5 * index, step=10, value=value, value_kind=kind))
    return {"bare": bare, "whole": whole, "recipe": recipe, "frontier": frontier}


@pytest.fixture
def filled(any_service: Service) -> Iterator[tuple[Service, dict[str, str]]]:
    with any_service.database.write() as session:
        ids = fill(session)
    yield any_service, ids


ANSWERS: list[tuple[str, type[schemas.Schema]]] = [
    ("/v1/jobs", schemas.Page[schemas.JobOut]),
    ("/v1/jobs?limit=1", schemas.Page[schemas.JobOut]),
    ("/v1/jobs?state=cancelled", schemas.Page[schemas.JobOut]),
    ("/v1/jobs/{bare}", schemas.JobOut),
    ("/v1/jobs/{whole}", schemas.JobOut),
    ("/v1/jobs/{whole}/trials", schemas.Page[schemas.TrialOut]),
    ("/v1/jobs/{whole}/trials?limit=1", schemas.Page[schemas.TrialOut]),
    ("/v1/jobs/{whole}/trials/1", schemas.TrialOut),
    ("/v1/jobs/{whole}/trials/1/telemetry", schemas.Page[schemas.TraceOut]),
    ("/v1/jobs/{whole}/confirmations", schemas.Page[schemas.ConfirmationOut]),
    ("/v1/jobs/{whole}/recipes", schemas.Page[schemas.RecipeOut]),
    ("/v1/recipes", schemas.Page[schemas.RecipeOut]),
    ("/v1/recipes/{recipe}", schemas.RecipeOut),
    ("/v1/frontiers", schemas.Page[schemas.FrontierOut]),
]


def test_every_answer_is_what_its_schema_says_and_no_more(filled: tuple[Service, dict[str, str]]) -> None:
    service, ids = filled
    with service.client("read") as client:
        for path, schema in ANSWERS:
            answer = client.get(path.format(**ids))
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json"), path
            assert schema.model_validate_json(answer.content, strict=True).model_dump(mode="json") == answer.json(), (
                path
            )


def test_what_was_stored_as_json_comes_back_as_it_was(filled: tuple[Service, dict[str, str]]) -> None:
    service, ids = filled
    with service.client("read") as client:
        job = client.get(f"/v1/jobs/{ids['whole']}").json()
        trial = client.get(f"/v1/jobs/{ids['whole']}/trials/1").json()
        recipe = client.get(f"/v1/recipes/{ids['recipe']}").json()
    for name in ("estimate", "fit", "range_test"):
        assert job[name] == ODD, name
    assert (job["spec"], job["warnings"], job["diagnosis"], job["learnt_from"]) == (PRICED, [WARNING], [ODD], LEARNT)
    for name in ("parameters", "derived", "memory", "health"):
        assert trial[name] == ODD, name
    assert (trial["probes"], recipe["parameters"], recipe["interval"]) == ([ODD], ODD, [0, 1e-05])


def test_what_is_worked_out_of_several_rows(filled: tuple[Service, dict[str, str]]) -> None:
    service, ids = filled
    with service.client("read") as client:
        bare, whole = (client.get(f"/v1/jobs/{ids[name]}").json() for name in ("bare", "whole"))
        trial = client.get(f"/v1/jobs/{ids['whole']}/trials/1").json()
    assert whole["baseline"] == {"trial": 0, "value": None, "value_kind": "missing"}, "it crashed"
    assert whole["best"] == {"trial": 1, "value": 1e-05, "value_kind": "finite"}
    assert (whole["outcomes"], whole["progress"]) == ({"crashed": 1, "ok": 1}, {"done": 2, "total": 4})
    assert (whole["spend"]["cost"], whole["spend"]["energy_kwh"]) == (pytest.approx(36.5 / 1200), 1.0)
    assert whole["spend"]["energy_reason"] == "without 1 of 3 runs: why"
    assert (whole["started_at"], whole["study"]["url"]) == ("2026-03-29T01:30:00.123Z", None)
    assert [point["value_kind"] for point in trial["curve"]] == ["finite", "nan"]
    assert (bare["baseline"], bare["best"], bare["outcomes"], bare["spend"]["cost"]) == (None, None, {}, None)
    assert bare["waiting_for"]["code"] == "no_runner"
