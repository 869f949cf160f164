"""Following a job on the screen: drawn on a terminal, told line by line elsewhere."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from x5tune import screen, wording
from x5tune.following import Following, Line
from x5tune.shapes import ENDED, Event, Job

if TYPE_CHECKING:
    from rich.console import RenderableType

    from x5tune.client import Client

LOOK_S = 2.0  # how often the service is asked what a job waits for and what it has spent
KEPT_LINES = 6


class View(Protocol):
    """Where a followed job is shown."""

    def on_event(self, event: Event, line: Line | None) -> None: ...

    def on_line(self, line: Line) -> None: ...

    def __enter__(self) -> View: ...

    def __exit__(self, *_: object) -> None: ...


def follow(client: Client, job: Job, *, as_json: bool) -> Job:
    """Show a job until it has ended; the job as it ended. An interrupt passes through."""
    following = Following(job)
    view: View
    if as_json:
        view = JsonView()
    elif screen.is_live():
        view = LiveView(following)
    else:
        view = LineView()
    source = _Source(client, job["id"])
    with view:
        source.start()
        for item in source:
            if isinstance(item, Line):
                view.on_line(item)
            elif isinstance(item, _Look):
                for line in following.refresh(item.job):
                    view.on_line(line)
            else:
                view.on_event(item, following.apply(item))
        ended = client.wait(job["id"], timeout_s=30)
        following.refresh(ended)
    return ended


@dataclass(frozen=True, slots=True)
class _Look:
    """The job as the service says it is: what it waits for and what it has spent comes in no event."""

    job: Job


class _Source:
    """What there is to show, in the order in which it comes, from threads of their own: the screen never waits."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._found: queue.SimpleQueue[Event | Line | _Look | Exception | None] = queue.SimpleQueue()
        self._is_over = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._read, name="events", daemon=True).start()
        threading.Thread(target=self._look, name="looks", daemon=True).start()

    def __iter__(self) -> Iterator[Event | Line | _Look]:
        while True:
            try:
                item = self._found.get(timeout=1.0)  # a wait without an end would not hear Ctrl-C everywhere
            except queue.Empty:
                continue
            if isinstance(item, Exception):
                raise item
            if item is None:
                return
            yield item

    def _read(self) -> None:
        try:
            for event in self._client.events(self._job_id, on_break=self._on_break):
                self._found.put(event)
            self._found.put(None)
        except Exception as error:
            self._found.put(error)  # for the thread that shows it
        self._is_over.set()

    def _look(self) -> None:
        pause_s = LOOK_S / 2
        while not self._is_over.wait(pause_s):
            pause_s = LOOK_S
            with contextlib.suppress(Exception):  # the event stream fails too, and knows what to do
                self._found.put(_Look(self._client.job(self._job_id)))

    def _on_break(self, reason: str) -> None:
        self._found.put(Line("", f"connection lost ({wording.one_line(reason)}); trying again", "waiting"))


class JsonView:
    """One event a line."""

    def on_event(self, event: Event, line: Line | None) -> None:  # noqa: ARG002 - a view's signature
        screen.write_json_line(event)

    def on_line(self, line: Line) -> None: ...

    def __enter__(self) -> JsonView:
        return self

    def __exit__(self, *_: object) -> None: ...


class LineView:
    """One line for each thing worth saying, without control characters: for logs and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def on_event(self, event: Event, line: Line | None) -> None:  # noqa: ARG002 - a view's signature
        if line is not None:
            self.on_line(line)

    def on_line(self, line: Line) -> None:
        if line.text == self._last:
            return
        self._last = line.text
        when = line.time or datetime.now(UTC).isoformat()
        sys.stdout.write(f"{wording.local_time(when)}  {line.text}\n")
        sys.stdout.flush()

    def __enter__(self) -> LineView:
        return self

    def __exit__(self, *_: object) -> None: ...


class LiveView:
    """A display that is drawn again and again, and stays when the job has ended."""

    def __init__(self, following: Following) -> None:
        from rich.live import Live

        self._following = following
        self._lines: deque[Line] = deque(maxlen=KEPT_LINES)
        self._lock = threading.Lock()
        self._is_broken = ""
        self._live = Live(
            console=screen.console(), get_renderable=self._render, refresh_per_second=4, vertical_overflow="crop"
        )

    def on_event(self, event: Event, line: Line | None) -> None:  # noqa: ARG002 - a view's signature
        with self._lock:
            self._is_broken = ""
            if line is not None:
                self._lines.append(line)

    def on_line(self, line: Line) -> None:
        with self._lock:
            if line.text.startswith("connection lost"):
                self._is_broken = line.text
            elif not line.text.startswith("waiting: "):  # shown as long as it lasts, by `_render`
                self._lines.append(line)

    def __enter__(self) -> LiveView:
        self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        from x5tune.drawing import draw

        with self._lock:
            lines, broken = list(self._lines), self._is_broken
        return draw(self._following, lines, broken, datetime.now(UTC))


def exit_code(job: Job) -> int:
    """0 for a job that has done its work, whatever it recommends."""
    assert job["state"] in ENDED
    return 0 if job["state"] == "succeeded" else 1
