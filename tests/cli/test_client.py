"""The client: every call, its errors, and connections that break."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.errors import SettingError
from service.settings import Settings
from tests.cli.support import claimed, confirm, finished_job, job_of, run_trials
from tests.service.support import SPEC, Service, add_job, result, running_service
from x5tune import ApiError, Client, InvalidSpec, Unauthorised, Unreachable, WaitTimeout, connection
from x5tune.errors import ConfigurationError, NotFound
from x5tune.sse import read_events


def test_a_job_from_submission_to_recipe(client: Client, service: Service) -> None:
    job = client.submit(SPEC)
    assert client.job(job["id"]) == job
    client.cancel(job["id"])
    job_id = finished_job(service.database)
    assert client.wait(job_id, timeout_s=5)["state"] == "succeeded"
    assert [trial["number"] for trial in client.trials(job_id)] == [0, 1, 2, 3, 4]
    assert client.trial(job_id, 1)["curve"][0]["index"] == 1
    assert len(client.confirmations(job_id)) == 4
    recipe = client.recipes(job_id)[0]
    assert client.recipe(recipe["id"]) == recipe
    assert [each["id"] for each in client.all_recipes(workload="quadratic")] == [recipe["id"]]
    assert "lr: 0.1" in client.export(recipe["id"])
    assert {each["name"] for each in client.workloads()} >= {"digits-cnn"}
    assert client.runners() == []
    client.delete(job_id, recipes=True)
    assert list(client.all_recipes()) == []


def test_tokens_are_made_listed_and_revoked(client: Client, service: Service) -> None:
    made = client.create_token("ci", "read")
    assert made["token"] not in str(list(client.tokens()))
    with Client(service.url, made["token"]) as reader:
        assert list(reader.jobs()) == []
        client.revoke_token(made["id"])
        with pytest.raises(Unauthorised):
            list(reader.jobs())


def test_validation_names_the_fields(client: Client) -> None:
    assert client.validate(SPEC)["resolved"]["workload"] == "quadratic"
    with pytest.raises(InvalidSpec) as raised:
        client.submit({"workload": "quadratic", "budget": {"trials": float("inf")}})
    assert raised.value.status == 422
    assert raised.value.errors[0]["field"] == "budget.trials"
    with pytest.raises(TypeError):
        client.submit({"workload": object()})


@pytest.mark.parametrize("job_id", ["", ".", "..", "a/b", "?x=1", "%2e", "é", "01890000-0000-7000-8000-000000000000"])
def test_an_id_is_one_part_of_a_path_whatever_it_holds(client: Client, job_id: str) -> None:
    with pytest.raises(NotFound):
        client.job(job_id)


def test_lists_iterate_over_pages(client: Client, service: Service) -> None:
    ids = [add_job(service.database) for _ in range(5)]
    assert [job["id"] for job in client.jobs()] == ids[::-1]
    assert [job["id"] for job in client.jobs(limit=2)] == ids[:2:-1]
    page = client.jobs_page(limit=2)
    assert [job["id"] for job in client.jobs_page(limit=2, cursor=page["next"])["items"]] == ids[2:0:-1]


def test_waiting_ends_in_time(client: Client, service: Service) -> None:
    job_id = add_job(service.database)
    with pytest.raises(WaitTimeout, match="it goes on"):
        client.wait(job_id, timeout_s=0.2)
    cancelling = threading.Timer(0.3, client.cancel, [job_id])
    cancelling.start()
    assert client.wait(job_id, timeout_s=10)["state"] == "cancelled"
    cancelling.join()


def test_an_unreachable_service_is_said_at_once() -> None:
    started = time.monotonic()
    with Client("http://127.0.0.1:9", "x") as lost, pytest.raises(Unreachable, match=r"http://127\.0\.0\.1:9"):
        lost.submit(SPEC)
    assert time.monotonic() - started < 2


def test_events_come_as_they_happen_and_end_with_the_job(client: Client, service: Service) -> None:
    recorder = claimed(service.database)
    events = client.events(job_of(recorder))
    assert [next(events)["type"] for _ in range(2)] == ["state", "state"]
    run_trials(recorder)
    confirm(recorder)
    recorder.finish(result())
    rest = list(events)
    assert [event["id"] for event in rest] == list(range(3, len(rest) + 3))
    assert rest[-1]["type"] == "end"
    assert list(client.events(job_of(recorder), after=rest[-1]["id"])) == []


def test_events_go_on_without_a_gap_when_the_service_starts_again(tmp_path: Path, service: Service) -> None:
    recorder = claimed(service.database)
    settings = Settings(tmp_path, service.settings.database_url)
    with running_service(settings) as first:
        port = int(first.url.rpartition(":")[2])
        client = Client(first.url, service.secrets["admin"])
        broken: list[str] = []
        events = client.events(job_of(recorder), on_break=broken.append)
        seen = [next(events)["id"], next(events)["id"]]
    run_trials(recorder)
    with _again(settings, port):
        recorder.finish(result())
        seen += [event["id"] for event in events]
    client.close()
    assert broken
    assert seen == list(range(1, len(seen) + 1))


def test_events_of_a_service_that_stays_away_end_as_unreachable(service: Service, tmp_path: Path) -> None:
    job_id = add_job(service.database)
    with running_service(Settings(tmp_path, service.settings.database_url)) as first:
        client = Client(first.url, service.secrets["admin"])
        events = client.events(job_id, patience_s=0.5)
        next(events)
    with client, pytest.raises(Unreachable):
        next(events)


def test_a_submission_whose_answer_is_lost_is_sent_again_and_makes_one_job(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, keys = httpx.Client.request, list[str]()

    def flaky(self: httpx.Client, *arguments: Any, **options: Any) -> httpx.Response:
        answer = real(self, *arguments, **options)
        if arguments[0] == "POST":
            keys.append(options["headers"]["Idempotency-Key"])
            if len(keys) == 1:
                raise httpx.ReadError("the answer was lost")
        return answer

    monkeypatch.setattr(httpx.Client, "request", flaky)
    job = client.submit(SPEC)
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert [each["id"] for each in client.jobs()] == [job["id"]]


def test_a_token_is_not_made_twice_when_the_answer_is_lost(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> httpx.Response:
        raise httpx.ReadError("lost")

    monkeypatch.setattr(httpx.Client, "request", broken)
    with pytest.raises(Unreachable, match="the connection broke"):
        client.create_token("ci")


def test_a_refusal_is_typed_and_says_what_the_service_said(client: Client, service: Service) -> None:
    job_id = add_job(service.database)
    with pytest.raises(ApiError, match="cancel it first") as raised:
        client.delete(job_id)
    assert (raised.value.status, raised.value.problem["title"]) == (409, "Conflict")


def test_home_is_where_the_service_thinks_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cases: list[dict[str, str]] = [
        {},
        {"X5TUNE_HOME": "/a/b"},
        {"X5TUNE_HOME": "relative"},
        {"X5TUNE_HOME": "~/x"},
        {"XDG_DATA_HOME": "/data"},
        {"XDG_DATA_HOME": "relative"},
        {"X5TUNE_HOME": "", "XDG_DATA_HOME": "/data"},
    ]
    for environ in cases:
        assert connection.home(environ) == Settings.from_environment(environ).home
    nobodys = {"X5TUNE_HOME": "~no-such-user-here/x"}
    with pytest.raises(ConfigurationError, match="no-such-user-here"):
        connection.home(nobodys)
    with pytest.raises(SettingError, match="no-such-user-here"):
        Settings.from_environment(nobodys)


def test_a_given_address_beats_the_environment_which_beats_the_file(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"url": "http://127.0.0.1:1", "token": "left"}')
    environ = {"X5TUNE_HOME": str(tmp_path)}
    assert connection.find(environ=environ) == connection.Connection("http://127.0.0.1:1", "left")
    environ["X5TUNE_URL"] = "http://env:2/"
    assert connection.find(environ=environ) == connection.Connection("http://env:2", None)
    assert connection.find("http://given:3", "mine", environ).url == "http://given:3"
    assert connection.find("http://localhost:1", None, environ).token == "left"
    with pytest.raises(ConfigurationError):
        connection.find("http://given:3", "two words", environ)


def test_an_event_is_read_however_its_text_arrives() -> None:
    text = ': hello\n\nid: 1\nevent: log\ndata: {"id": 1, "data": "a\u2028b"}\n\n'
    text += 'id: 2\ndata: {"id": 2}\r\n\r\ndata: {"id": 3'
    for size in (1, 7, 1000):
        chunks: Iterator[str] = (text[at : at + size] for at in range(0, len(text), size))
        assert [event["id"] for event in read_events(chunks)] == [1, 2]


class _again:  # noqa: N801 - reads as a verb
    """The API once more, on the port that it had."""

    def __init__(self, settings: Settings, port: int) -> None:
        import uvicorn

        from service.api import create_app
        from service.api_process import listen

        self._app = create_app(settings)
        self._socket = listen("127.0.0.1", port)
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="warning", timeout_graceful_shutdown=2))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]})

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._app.state.is_stopping = True
        self._server.should_exit = True
        self._thread.join(15)
        self._socket.close()
