"""Schedules and their nights as Rich renderables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from x5tune import wording
from x5tune.shapes import Night, Schedule
from x5tune.tables import fits, natural_width, pairs, plain_table, styled

RESULTS = {
    "first": "first recipe",
    "new_best": "new best",
    "same": "same",
    "regression": "REGRESSION",
    "unknown": "cannot be compared",
    "failed": "failed",
    "cancelled": "cancelled",
}
FOLDED_CHARS = 13  # that a name or a rule needs at least to be readable when it is folded
STYLES = {"first": "ok", "new_best": "ok", "regression": "failed", "failed": "failed", "cancelled": "cancelled"}


def schedules_table(schedules: Sequence[Schedule], console: Console) -> Table:
    """The schedules; a narrow terminal is shown fewer columns, none of them cut."""
    short = wording.short_ids([each["id"] for each in schedules])
    cells = [_cells(each, short[each["id"]]) for each in schedules]
    full = _table(cells, "id", "state", "next", "last night", "when", "name")
    fixed = _table(cells, "id", "state", "next", "last night")
    if fits(console, full) or natural_width(console, fixed) + 2 * FOLDED_CHARS <= console.width:
        return full
    without_state = _table(cells, "id", "next", "name")
    return fixed if fits(console, fixed) else without_state


def _table(rows: Sequence[Mapping[str, Text]], *headers: str) -> Table:
    table = plain_table(*headers, folds=("when", "name"))
    for cells in rows:
        table.add_row(*(cells[header] for header in headers))
    return table


def _cells(schedule: Schedule, short: str) -> dict[str, Text]:
    last = schedule["nights"][0] if schedule["nights"] else None
    return {
        "id": Text(short),
        "state": styled(schedule["state"], "ok" if schedule["state"] == "active" else "paused"),
        "next": Text(_when(schedule["next_at"])),
        "last night": came_of(last) if last else Text(wording.NOTHING),
        "when": Text(f"{schedule['cron_words']}, {schedule['timezone']}"),
        "name": Text(wording.one_line(schedule["name"])),
    }


def schedule_details(schedule: Schedule) -> RenderableType:
    rows: list[tuple[str, RenderableType]] = [
        ("id", schedule["id"]),
        ("state", styled(schedule["state"], "ok" if schedule["state"] == "active" else "paused")),
        ("when", f"{schedule['cron_words']}, {schedule['timezone']} ({schedule['cron']})"),
        ("next", _when(schedule["next_at"])),
        ("overlap", schedule["overlap"]),
        ("missed", schedule["missed"]),
    ]
    rows += [("until", _when(schedule["ends_at"]))] if schedule["ends_at"] else []
    rows += [("webhook", wording.one_line(schedule["webhook"]))] if schedule["webhook"] else []
    rows.append(("standing", schedule["standing_recipe_id"] or "no recipe yet"))
    parts: list[RenderableType] = [Text(wording.one_line(schedule["name"]), "bold"), pairs(rows), Text("")]
    if not schedule["nights"]:
        return Group(*parts, Text("No night has come yet.", "dim"))
    table = plain_table(
        "due", "came of it", "before", "now", "job", "remark", numeric=("before", "now"), folds=("remark",)
    )
    for night in schedule["nights"]:
        told = night["comparison"] or {}
        due = _when(night["due_at"]) + (" by hand" if night["by_hand"] else "")
        table.add_row(
            Text(due),
            came_of(night),
            Text(wording.number(told.get("before"))),
            Text(wording.number(told.get("now"))),
            Text(wording.handle(night["job_id"]) if night["job_id"] else wording.NOTHING),
            Text(wording.one_line(night["reason"] or "")),
        )
    return Group(*parts, table)


def came_of(night: Night) -> Text:
    """`new best`, `same`, `skipped`, or that it is still under way."""
    if night["outcome"] != "submitted":
        return styled(night["outcome"], "failed" if night["outcome"] == "refused" else "paused")
    if night["comparison"] is None:
        return styled("under way", "running")
    result = str(night["comparison"].get("result"))
    return styled(RESULTS.get(result, wording.words(result)), STYLES.get(result, ""))


def _when(text: str | None) -> str:
    if text is None:
        return wording.NOTHING
    return wording.moment(text).astimezone().strftime("%Y-%m-%d %H:%M")
