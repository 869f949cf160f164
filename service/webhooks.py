"""Messages to webhooks: kept in the database first, then sent, signed and retried, by whichever API process is free.

Signed as standardwebhooks.com says: `webhook-signature` is `v1,` and the base64 of HMAC-SHA256, under
X5TUNE_WEBHOOK_SECRET, of `id.timestamp.body`. A message may come twice, with the same `webhook-id`. The address is
looked up, checked and connected to in one step, so that a name cannot point elsewhere by the time of the connection;
redirects are not followed, proxies of the environment not used. Messages to one address go one after the other, to
several side by side, and a try ends after LIMIT_S: a receiver that does not answer holds up its own messages only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import httpcore
import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.database import Database, now
from service.guarded_network import GuardedBackend
from service.models import Delivery, Job
from service.settings import Settings
from service.store import jobs, recipes

log = logging.getLogger(__name__)

WAITS_S = (5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0)
"""Before the second, third … try; after the last one the message is given up."""
TIMEOUT_S = 10.0
LIMIT_S = 20.0
HELD_S = 60.0
PATIENCE_S = 2.0
BATCH = 20
SENDERS = 8
GONE = 410


def tell(session: Session, url: str, kind: str, **facts: Any) -> None:
    """Queue a message in the caller's transaction, so that it is sent exactly if that is committed."""
    session.add(Delivery(url=url, body={"type": kind, "time": datetime.now(UTC).isoformat(), **facts}))


def job_facts(session: Session, job: Job) -> dict[str, Any]:
    """What a message says of a job."""
    names = ("id", "name", "workload", "state", "verdict", "stop_reason", "error")
    best = session.scalars(recipes.of_job(job.id, limit=1)).all()
    recipe = None
    if best:
        kept = ("id", "trial", "status", "value", "baseline_value", "difference", "parameters", "derived")
        recipe = {name: getattr(best[0], name) for name in kept}
    return {**{name: getattr(job, name) for name in names}, "recipe": recipe}


def sign(secret: str, message_id: str, timestamp: int, body: str) -> str:
    """The `webhook-signature` of a message."""
    key = secret.encode()
    if secret.startswith("whsec_"):
        with suppress(ValueError):
            key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    digest = hmac.new(key, f"{message_id}.{timestamp}.{body}".encode(), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class Notifier:
    """`tick` sends what is due, and waits for what is answered soon; the rest goes on beside it."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        backend = GuardedBackend(settings.webhook_allow, LIMIT_S)
        self._pool = httpcore.ConnectionPool(network_backend=backend, max_keepalive_connections=0)
        self._told = threading.Condition()
        self._telling: set[str] = set()  # addresses to which a message is on its way

    def tick(self) -> None:
        self._tell_of_ended_jobs()
        while True:
            for delivery in self._claimed():
                # A daemon: what is on its way does not keep the process from ending, and is sent again then.
                threading.Thread(target=self._send, args=(delivery,), name="webhook", daemon=True).start()
            with self._told:
                count = len(self._telling)
                if not count or not self._told.wait_for(lambda: len(self._telling) < count, PATIENCE_S):  # noqa: B023
                    return

    def close(self) -> None:
        self._pool.close()

    def _tell_of_ended_jobs(self) -> None:
        waiting = sa.select(Job).where(Job.webhook.is_not(None), Job.state.in_(jobs.ENDED_STATES)).limit(BATCH)
        with self._database.read() as session:
            if session.scalar(waiting.limit(1)) is None:
                return
        with self._database.write() as session:
            for job in session.scalars(waiting.with_for_update(skip_locked=True)):
                assert job.webhook is not None
                tell(session, job.webhook, "job.ended", job=job_facts(session, job))
                job.webhook = None

    def _claimed(self) -> Sequence[Delivery]:
        """Messages that are due, ours for HELD_S: should we die meanwhile, another process sends them then.

        One for each address to which none is on its way.
        """
        with self._told:
            busy = set(self._telling)
        due = sa.select(Delivery).where(Delivery.next_at <= now(), Delivery.url.not_in(busy))
        due = due.order_by(Delivery.next_at).limit(BATCH)
        if len(busy) >= SENDERS:
            return []
        with self._database.read() as session:
            if session.scalar(due.limit(1)) is None:
                return []
        with self._database.write() as session:
            by_url: dict[str, Delivery] = {}
            for delivery in session.scalars(due.with_for_update(skip_locked=True)):
                by_url.setdefault(delivery.url, delivery)
            found = list(by_url.values())[: SENDERS - len(busy)]
            for delivery in found:
                delivery.attempts += 1
            session.flush()
            held = sa.update(Delivery).where(Delivery.id.in_([delivery.id for delivery in found]))
            session.execute(held.values(next_at=now(HELD_S)).execution_options(synchronize_session=False))
        with self._told:
            self._telling |= {delivery.url for delivery in found}
        return found

    def _send(self, delivery: Delivery) -> None:
        try:
            self._note(delivery, self._try(delivery))
        except sa.exc.SQLAlchemyError as error:  # it is sent again after HELD_S
            log.warning("webhook %s: what came of it could not be noted: %s", delivery.id, error)
        finally:
            with self._told:
                self._telling.discard(delivery.url)
                self._told.notify_all()

    def _note(self, delivery: Delivery, error: str | None) -> None:
        values: dict[str, Any] = {"state": "delivered", "next_at": None, "error": None}
        if error is not None:
            is_last = delivery.attempts > len(WAITS_S) or error == str(GONE)
            again = None if is_last else now(WAITS_S[delivery.attempts - 1])
            values = {"state": "failed" if is_last else "pending", "next_at": again, "error": error}
            log.warning("webhook %s, try %d: %s", delivery.id, delivery.attempts, error)
        with self._database.write() as session:
            session.execute(sa.update(Delivery).where(Delivery.id == delivery.id).values(**values))

    def _try(self, delivery: Delivery) -> str | None:
        """What kept it from arriving, None when nothing did."""
        secret = self._settings.webhook_secret
        if secret is None:
            return "X5TUNE_WEBHOOK_SECRET is not set, and nothing is sent unsigned"
        body = json.dumps(delivery.body, allow_nan=False, separators=(",", ":"))
        timestamp = int(time.time())
        headers: dict[bytes | str, bytes | str] = {
            "Host": urlsplit(delivery.url).netloc,
            "Content-Type": "application/json",
            "User-Agent": "x5tune",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(secret, delivery.id, timestamp, body),
        }
        limits = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT_S)
        try:
            with self._pool.stream(
                "POST", delivery.url, headers=headers, content=body.encode(), extensions={"timeout": limits}
            ) as answer:
                status = answer.status
        except Exception as error:  # whatever a stranger's server makes of HTTP
            return f"{type(error).__name__}: {error}"[:500]
        return None if 200 <= status < 300 else str(status)
