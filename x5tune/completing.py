"""What the shell offers behind the Tab key. Quick, and silent whatever goes wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from x5tune.client import Client

TIMEOUT_S = 1.0
OFFERED = 30
FORMATS = ("yaml", "json", "args", "env")
STATES = ("queued", "running", "succeeded", "failed", "cancelled")
OUTCOMES = (
    "ok", "pruned", "diverged", "out_of_memory", "timed_out", "crashed", "no_metric", "cancelled", "lost",
)  # fmt: skip
TRIAL_STATES = ("waiting", "running", "paused")


def jobs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from x5tune import wording

    found: list[tuple[str, str]] = []
    with contextlib.suppress(Exception), _client(context) as client:
        page = client.jobs_page(limit=OFFERED, id_prefix=incomplete if incomplete and incomplete != "last" else None)
        short = wording.short_ids([job["id"] for job in page["items"]])
        for job in page["items"]:
            text = job["id"] if len(incomplete) > len(short[job["id"]]) else short[job["id"]]
            found.append((text, f"{wording.one_line(job['name'])[:40]} ({job['state']})"))
    return [*found, ("last", "the newest job")] if "last".startswith(incomplete) and found else found


def workloads(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    with contextlib.suppress(Exception), _client(context) as client:
        return [(each["name"], each["summary"]) for each in client.workloads() if each["name"].startswith(incomplete)]
    return []


def schedules(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    with contextlib.suppress(Exception), _client(context) as client:
        return [
            (each["name"], f"{each['cron_words']}, {each['state']}")
            for each in client.schedules()
            if each["name"].startswith(incomplete)
        ]
    return []


def formats(incomplete: str) -> list[str]:
    return [word for word in FORMATS if word.startswith(incomplete)]


def states(incomplete: str) -> list[str]:
    return [word for word in STATES if word.startswith(incomplete)]


def outcomes(incomplete: str) -> list[str]:
    return [word for word in (*OUTCOMES, *TRIAL_STATES) if word.startswith(incomplete)]


@contextlib.contextmanager
def _client(context: typer.Context) -> Iterator[Client]:
    from x5tune.client import Client

    given: dict[str, Any] = context.params
    with Client(given.get("url"), given.get("token"), timeout_s=TIMEOUT_S) as client:
        yield client
