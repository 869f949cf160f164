"""Webhooks: signed, retried, sent to nobody private, to a real HTTP server; on both databases."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpcore
import pytest
import sqlalchemy as sa

from service import webhooks
from service.database import Database, now
from service.guarded_network import GuardedBackend, RefusedAddressError, is_public
from service.models import Delivery, Job
from service.settings import Settings
from service.webhooks import Notifier, sign
from tests.service.support import Service, add_job, running_service, wait_for
from tests.service.test_jobs_api import problem

SECRET = "a secret of some length"


class Receiver:
    """A server that remembers what it was sent; answers with the statuses that it was given, then with 200."""

    def __init__(self) -> None:
        self.messages: list[tuple[dict[str, str], str]] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                receiver.messages.append((dict(self.headers), body))
                status = receiver.statuses.pop(0) if receiver.statuses else 200
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", f"http://127.0.0.1:{receiver.port}/elsewhere")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@contextmanager
def notifier(settings: Settings, database: Database, **changes: Any) -> Iterator[Notifier]:
    values: dict[str, Any] = {"webhook_secret": SECRET, "webhook_allow": ("127.0.0.1",), **changes}
    found = Notifier(replace(settings, **values), database)
    yield found
    found.close()


def queue(database: Database, url: str) -> None:
    with database.write() as session:
        webhooks.tell(session, url, "test", note="größer")


def stored(database: Database) -> Delivery:
    with database.read() as session:
        return session.scalars(sa.select(Delivery)).one()


def make_due(database: Database) -> None:
    with database.write() as session:
        session.execute(sa.update(Delivery).values(next_at=now(-1)))


def test_a_message_is_signed_as_the_standard_says(settings: Settings, database: Database, receiver: Receiver) -> None:
    queue(database, receiver.url)
    with notifier(settings, database) as sender:
        sender.tick()
        sender.tick()
    [(headers, body)] = receiver.messages
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body}".encode()
    expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert json.loads(body)["note"] == "größer"
    assert (stored(database).state, stored(database).next_at) == ("delivered", None)


def test_the_example_of_standardwebhooks() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    signature = sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_what_fails_is_tried_again_later_with_the_same_id(
    settings: Settings, database: Database, receiver: Receiver
) -> None:
    queue(database, receiver.url)
    receiver.statuses = [500, 503]
    with notifier(settings, database) as sender:
        for _ in range(3):
            sender.tick()
            sender.tick()  # not due yet: nothing is sent
            make_due(database) if stored(database).next_at else None
    assert len({headers["webhook-id"] for headers, _ in receiver.messages}) == 1
    assert (len(receiver.messages), stored(database).state, stored(database).attempts) == (3, "delivered", 3)


def test_it_is_given_up_after_the_last_try(settings: Settings, database: Database, receiver: Receiver) -> None:
    queue(database, receiver.url)
    receiver.statuses = [500] * 20
    with notifier(settings, database) as sender:
        for _ in range(len(webhooks.WAITS_S) + 3):
            sender.tick()
            if stored(database).next_at is not None:
                make_due(database)
    assert len(receiver.messages) == len(webhooks.WAITS_S) + 1
    assert (stored(database).state, stored(database).error) == ("failed", "500")


def test_redirects_are_not_followed(settings: Settings, database: Database, receiver: Receiver) -> None:
    queue(database, receiver.url)
    receiver.statuses = [302]
    with notifier(settings, database) as sender:
        sender.tick()
    assert (len(receiver.messages), stored(database).error) == (1, "302")


def test_nobody_private_is_told_unless_allowed(settings: Settings, database: Database, receiver: Receiver) -> None:
    queue(database, receiver.url)
    with notifier(settings, database, webhook_allow=()) as sender:
        sender.tick()
    assert receiver.messages == []
    assert "X5TUNE_WEBHOOK_ALLOW" in (stored(database).error or "")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "192.168.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "fd00::1",
        "0.0.0.0",
        "224.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::a00:1",
        "2002:7f00:1::",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "fec0::1",
        "fe80::1%eth0",
    ],
)
def test_an_address_is_judged_when_it_is_connected_to(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(RefusedAddressError, match="not public"):
        GuardedBackend(()).connect_tcp("looks.innocent.example", 443)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8"])
def test_the_open_internet_may_be_told(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::ffff:7f00:1]"])
def test_other_ways_to_write_this_machine_are_seen_through(
    host: str, settings: Settings, database: Database, receiver: Receiver
) -> None:
    queue(database, f"http://{host}:{receiver.port}/hook")
    with notifier(settings, database, webhook_allow=()) as sender:
        sender.tick()
    assert receiver.messages == []
    assert "is not public" in (stored(database).error or "")


def test_a_receiver_that_drips_holds_up_nobody_else_and_is_left(
    settings: Settings, database: Database, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "LIMIT_S", 3.0)
    monkeypatch.setattr(webhooks, "PATIENCE_S", 0.2)
    with dripping() as url, notifier(settings, database) as sender:
        for _ in range(3):
            queue(database, url)
        queue(database, receiver.url)
        sender.tick()
        assert len(receiver.messages) == 1
        wait_for(lambda: "ReadTimeout" in str(errors(database, url)))
        assert errors(database, url).count(None) == 2  # they wait for their turn


def errors(database: Database, url: str) -> list[str | None]:
    with database.read() as session:
        return list(session.scalars(sa.select(Delivery.error).where(Delivery.url == url)))


@contextmanager
def dripping() -> Iterator[str]:
    """A server that begins an answer and goes on with it for ever, a byte at a time."""
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        with listening, listening.accept()[0] as connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not over.wait(0.05):
                connection.sendall(b"x")

    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    thread = threading.Thread(target=serve, args=(listening,), daemon=True)
    thread.start()
    yield url
    over.set()
    thread.join(10)


def test_a_network_or_a_name_may_be_allowed(receiver: Receiver) -> None:
    for allowed in ("127.0.0.0/8", "localhost"):
        GuardedBackend([allowed]).connect_tcp("localhost", receiver.port, 5.0).close()
    with pytest.raises(httpcore.ConnectError):
        GuardedBackend(()).connect_tcp("no-such-host.invalid", 443, 5.0)


def test_without_a_secret_nothing_is_sent(settings: Settings, database: Database, receiver: Receiver) -> None:
    queue(database, receiver.url)
    with notifier(settings, database, webhook_secret=None) as sender:
        sender.tick()
    assert receiver.messages == []
    assert "X5TUNE_WEBHOOK_SECRET" in (stored(database).error or "")


def test_many_processes_send_a_message_once(settings: Settings, database: Database, receiver: Receiver) -> None:
    for _ in range(10):
        queue(database, receiver.url)
    barrier = threading.Barrier(3)

    def send() -> None:
        mine = Database(settings.database_url)
        with notifier(settings, mine) as sender:
            barrier.wait(10)
            sender.tick()
        mine.close()

    threads = [threading.Thread(target=send) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(receiver.messages) == 10


def test_the_end_of_a_job_is_told_once(settings: Settings, database: Database, receiver: Receiver) -> None:
    job_id = add_job(database, webhook=receiver.url)
    with notifier(settings, database) as sender:
        sender.tick()
        assert receiver.messages == []
        with database.write() as session:
            session.execute(sa.update(Job).values(state="failed", error="it broke"))
        for _ in range(3):
            sender.tick()
    [(_, body)] = receiver.messages
    told = json.loads(body)
    assert (told["type"], told["job"]["id"], told["job"]["state"]) == ("job.ended", job_id, "failed")
    assert (told["job"]["error"], told["job"]["recipe"]) == ("it broke", None)


def test_a_submitted_jobs_webhook_is_told_by_the_service(sqlite_settings: Settings, receiver: Receiver) -> None:
    from tests.service.support import SPEC

    settings = replace(sqlite_settings, webhook_secret=SECRET, webhook_allow=("127.0.0.1",))
    with running_service(settings) as service, service.client("submit") as client:
        job = client.post("/v1/jobs", json={**SPEC, "webhook": receiver.url}).json()
        assert job["resolved"]["webhook"] == receiver.url
        client.post(f"/v1/jobs/{job['id']}/cancel")
        wait_for(lambda: receiver.messages)
    assert json.loads(receiver.messages[0][1])["job"]["state"] == "cancelled"


def test_a_webhook_needs_a_secret_to_be_signed_with(shared: Service) -> None:
    with shared.client("submit") as client:
        found = problem(client.post("/v1/jobs", json={"workload": "quadratic", "webhook": "https://example.org"}), 422)
    assert "X5TUNE_WEBHOOK_SECRET" in found["detail"]
