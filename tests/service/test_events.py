"""Server-Sent Events: every event once, in order, from wherever the listener left off."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import sqlalchemy as sa

from service.recorder import Recorder
from service.store import jobs
from tests.service.support import Service, add_job, ended, point, read_events, result, started, take, wait_for
from tuner.jobspec import ResolvedJob
from tuner.records import Phase


def study_of(service: Service, job_id: str) -> Recorder:
    claim = take(service.database)
    assert claim.job.id == job_id
    return Recorder(service.database, claim.lease, claim.job, ResolvedJob.from_json(claim.job.resolved), lambda: False)


def play(study: Recorder, pause_s: float = 0.0) -> None:
    study.phase_started(Phase.SEARCH, 1)
    study.trial_started(started(0))
    for index in range(1, 6):
        study.points_reported(0, [point(index, 1 / index)])
        time.sleep(pause_s)
    study.trial_ended(ended(0))
    study.finish(result())


def listen(
    service: Service, job_id: str, last: int | None = None, stop_after: int | None = None
) -> list[dict[str, Any]]:
    headers = {} if last is None else {"Last-Event-ID": str(last)}
    found = []
    with service.client("read") as client, client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for event in read_events(answer.iter_lines()):
            found.append(event)
            if len(found) == stop_after:
                break
    return found


def test_a_live_stream_tells_everything_and_ends(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    writer = threading.Thread(target=lambda: play(study_of(any_service, job_id), 0.1))
    writer.start()
    events = listen(any_service, job_id)
    writer.join()
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    types = [event["type"] for event in events]
    assert types[:4] == ["state", "state", "phase", "trial"]
    assert types.count("report") == 5
    assert types[-2:] == ["state", "end"]
    assert "recipe" in types
    assert events[-1]["data"]["state"] == "succeeded"
    assert all(event["job_id"] == job_id and event["time"].endswith("Z") for event in events)


def test_a_stream_resumes_after_the_last_event_without_a_gap(any_service: Service) -> None:
    job_id = add_job(any_service.database)
    play(study_of(any_service, job_id))
    everything = listen(any_service, job_id)
    first = listen(any_service, job_id, stop_after=4)
    rest = listen(any_service, job_id, last=first[-1]["id"])
    assert first + rest == everything


def test_a_stream_that_has_told_all_ends_at_once(service: Service) -> None:
    job_id = add_job(service.database)
    play(study_of(service, job_id))
    last = listen(service, job_id)[-1]["id"]
    assert listen(service, job_id, last=last) == []


def test_a_frame_carries_the_id_and_type_for_browsers(service: Service) -> None:
    job_id = add_job(service.database)
    with service.client("read") as client, client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(4)] == [": x5tune", "", "id: 1", "event: state"]


def test_a_cancelled_queued_job_ends_its_stream(service: Service) -> None:
    job_id = add_job(service.database)
    with service.client() as client:
        client.post(f"/v1/jobs/{job_id}/cancel")
    assert [event["type"] for event in listen(service, job_id)] == ["state", "state", "end"]


def test_a_quiet_stream_sends_a_sign_of_life(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.routes.events.HEARTBEAT_S", 0.3)
    job_id = add_job(service.database)
    with service.client("read") as client, client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        for line in answer.iter_lines():
            if line == ": still here":
                return
    pytest.fail("the stream ended")


def test_a_deleted_job_ends_its_stream(service: Service) -> None:
    job_id = add_job(service.database)
    with service.client("read") as client, client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        events = read_events(answer.iter_lines())
        assert next(events)["data"]["state"] == "queued"
        with service.database.write() as session:
            jobs.delete(session, job_id)
        assert list(events) == []


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
def test_a_bad_last_event_id_is_422(shared: Service, last: str) -> None:
    job_id = add_job(shared.database)
    with shared.client("read") as client:
        answer = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    assert answer.status_code == 422


def test_twenty_listeners_do_not_keep_others_waiting(service: Service) -> None:
    job_id = add_job(service.database)
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(len(listen(service, job_id)))) for _ in range(20)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    begun = time.monotonic()
    with service.client("read") as client:
        assert client.get(f"/v1/jobs/{job_id}").status_code == 200
    assert time.monotonic() - begun < 2
    play(study_of(service, job_id))
    wait_for(lambda: len(counts) == 20)
    assert len(set(counts)) == 1
    for thread in threads:
        thread.join()


def test_a_database_that_is_away_for_a_moment_when_a_stream_reads_ends_no_stream(service: Service) -> None:
    job_id = add_job(service.database)
    failures = iter(range(2))

    def refuse(*told: Any) -> None:
        if "FROM x5_events" in told[2] and next(failures, None) is not None:
            raise sa.exc.OperationalError(told[2], {}, Exception("cut"))

    sa.event.listen(service.app.state.database.engine, "before_cursor_execute", refuse)
    assert [event["type"] for event in listen(service, job_id, stop_after=1)] == ["state"]
    assert next(failures, None) is None, "it was refused twice"
