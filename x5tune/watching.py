"""Following a job on the screen: drawn on a terminal, told line by line elsewhere."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from x5tune import screen, wording
from x5tune.errors import X5tuneError
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

    def on_tick(self) -> None: ...

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
    source = _EventSource(client, job["id"])
    with view:
        source.start()
        looked_at = time.monotonic() - LOOK_S / 2
        for item in source:
            if isinstance(item, Line):
                view.on_line(item)
            elif item is not None:
                view.on_event(item, following.apply(item))
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                for line in _refresh(client, following):
                    view.on_line(line)
            view.on_tick()
        ended = client.wait(job["id"], timeout_s=30)
        following.refresh(ended)
    return ended


def _refresh(client: Client, following: Following) -> list[Line]:
    try:
        return following.refresh(client.job(following.job["id"]))
    except X5tuneError:
        return []  # the event stream notices too, and knows what to do


class _EventSource:
    """A job's events from a thread of their own, so that the screen lives while nothing happens."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._job_id = job_id
        self._found: queue.SimpleQueue[Event | Line | BaseException | None] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._read, name="events", daemon=True).start()

    def __iter__(self) -> _EventSource:
        return self

    def __next__(self) -> Event | Line | None:
        """The next event, a word about a broken connection, or None after a while without either."""
        try:
            item = self._found.get(timeout=0.5)
        except queue.Empty:
            return None
        if isinstance(item, BaseException):
            raise item
        if item is None:
            raise StopIteration
        return item

    def _read(self) -> None:
        try:
            for event in self._client.events(self._job_id, on_break=self._on_break):
                self._found.put(event)
            self._found.put(None)
        except BaseException as error:  # handed to the thread that shows it
            self._found.put(error)

    def _on_break(self, reason: str) -> None:
        self._found.put(Line("", f"connection lost ({wording.one_line(reason)}); trying again", "waiting"))


class JsonView:
    """One event a line."""

    def on_event(self, event: Event, line: Line | None) -> None:  # noqa: ARG002 - a view's signature
        screen.write_json_line(event)

    def on_line(self, line: Line) -> None: ...

    def on_tick(self) -> None: ...

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
        import sys

        if line.text == self._last:
            return
        self._last = line.text
        when = line.time or datetime.now(UTC).isoformat()
        sys.stdout.write(f"{wording.local_time(when)}  {line.text}\n")
        sys.stdout.flush()

    def on_tick(self) -> None: ...

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

    def on_tick(self) -> None: ...

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
