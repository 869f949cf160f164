"""The live display of a job: one function of what stands now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from x5tune import tables, wording
from x5tune.following import Following, Line


def draw(following: Following, lines: Sequence[Line], broken: str, now: datetime) -> RenderableType:
    job = following.job
    title = Text(wording.one_line(job["name"]), "bold", no_wrap=True, overflow="ellipsis")
    below = Text(f"{wording.handle(job['id'])}  {wording.one_line(job['workload'])}", "dim", no_wrap=True)
    rows: list[tuple[str, RenderableType]] = [("state", _state(following)), ("progress", _Progress(following))]
    rows += [("time", _times(following, now)), ("best", _best(following))]
    rows.append(("trials", tables.outcome_counts(following.outcomes, len(following.running), len(following.paused))))
    waiting = job["waiting_for"]
    if waiting and not following.has_ended:
        rows.append(("waiting", tables.styled(wording.one_line(waiting["message"]), "waiting")))
    if broken:
        rows.append(("service", tables.styled(broken, "waiting")))
    told = [_told(line) for line in lines]
    footer = [] if following.has_ended else [Text("Ctrl-C stops watching; the job goes on.", "dim")]
    return Group(title, below, tables.pairs(rows), *([Text(""), *told] if told else []), *footer)


def _state(following: Following) -> Text:
    text = tables.styled(following.state, following.state)
    if following.state == "running" and following.phase:
        text.append(f": {wording.words(following.phase)}", "bold")
    if following.job["cancel_requested"] and following.state == "running":
        text.append(" (cancelling)", "yellow")
    return text


class _Progress:
    """A bar that takes the width that is left, and the count behind it."""

    def __init__(self, following: Following) -> None:
        self._done, self._total = following.progress
        self._what = "runs" if following.phase == "confirm" else "trials"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self._total:
            yield Text(f"{self._done} {self._what}")
            return
        count = f"{self._done}/{self._total} {self._what}"
        width = max(8, min(40, options.max_width - len(count) - 3))
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_row(ProgressBar(total=self._total, completed=min(self._done, self._total), width=width), Text(count))
        yield grid


def _times(following: Following, now: datetime) -> str:
    elapsed = following.elapsed_s(now)
    if elapsed is None:
        return "not started yet"
    left = following.left_s(now)
    phase = f" of {following.phase}" if following.phase else ""
    return wording.duration(elapsed) + (f", about {wording.about(left)}{phase} left" if left is not None else "")


def _best(following: Following) -> Text:
    best, baseline = following.best, following.baseline
    if best is None:
        return Text("none yet", "dim")
    text = Text(f"{wording.number(best['value'])}", "bold").append(f" (trial {best['trial']})", "not bold")
    gain = wording.best_so_far(best, baseline, wording.direction(following.job))
    if gain:
        text.append(f", {gain}", "green" if gain.endswith("better") else "")
    if baseline is not None and baseline["value"] is not None and best["trial"] != baseline["trial"]:
        text.append(f"; baseline {wording.number(baseline['value'])}", "not bold")
    return text


def _told(line: Line) -> Text:
    when = f"{wording.local_time(line.time)}  " if line.time else ""
    text = Text(when, "dim", no_wrap=True, overflow="ellipsis")
    return text.append(line.text, tables.STYLES.get(line.about, "") or "not dim")
