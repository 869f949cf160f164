"""Metrics that an unchanged script writes to files: JSON lines, CSV, TensorBoard events.

Every run has a folder of its own, so what is found there is this run's; polled, and never waited for.
"""

from __future__ import annotations

import csv
import importlib.util
import math
import os
import sys
import time
import types
from collections.abc import Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tuner.jobspec import MetricSource
from tuner.probe_lines import GrowingFile, number_or_text, parsed
from workloads.contract import PROGRESS

LOOK_S = 0.25  # how often a folder is searched for event files
EVENTS_S = 0.05  # how long one call may read events; images among them take long
COLUMNS = {**{name: name for name in PROGRESS}, **dict.fromkeys(("global_step", "iteration", "iter"), "step")}
"""What loggers call how far a run is, in lower case, and what we call it."""
MISSING = frozenset(("", "none", "null", "na", "n/a"))


class Follower(Protocol):
    """Yields the reports that a file has gained since the last call; `is_over`: the run has ended, look once more."""

    def read(self, *, is_over: bool = False) -> list[Mapping[str, Any]]: ...


class JsonLinesFile:
    """A logger's JSON lines, flat or with `metrics`; a line that says neither a metric nor how far it is, is none.

    What is null was not measured.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._file = GrowingFile(path)
        self._rows = _Rows(path.name, metric)

    def read(self, *, is_over: bool = False) -> list[Mapping[str, Any]]:
        reports = []
        for line in (*self._file.read(is_over=is_over), *(self._file.rest() if is_over else ())):
            message = parsed(line)
            nested = message.get("metrics")
            flat = {**message, **nested} if isinstance(nested, Mapping) else message
            given = {name: value for name, value in flat.items() if value is not None}
            values = {name: number_or_text(value) if isinstance(value, str) else value for name, value in given.items()}
            reports += self._rows.report(values, line)
        return reports


class CsvFile:
    """A logger's CSV: a header, a row for each time, cells that may be empty.

    Columns may be parted by comma, semicolon or tab. A later row of nothing but names is a new header. A last row
    without an end is left out: it may be a half of one. A line that is no CSV, such as a progress bar's, is none.
    """

    def __init__(self, path: Path, metric: str) -> None:
        self._file = GrowingFile(path)
        self._rows = _Rows(path.name, metric)
        self._header: list[str] = []
        self._delimiter = ","
        self._begun = 0

    def read(self, *, is_over: bool = False) -> list[Mapping[str, Any]]:
        lines = self._file.read(is_over=is_over)
        if self._file.times_begun != self._begun:
            self._begun, self._header = self._file.times_begun, []
        return [report for line in lines for report in self._take(line)]

    def _take(self, line: bytes) -> list[Mapping[str, Any]]:
        text = line.decode("utf-8-sig", "replace").strip("\r\n")
        if not text.strip() or len(text) > csv.field_size_limit():
            return []
        if not self._header:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = [cell.strip() for cell in next(csv.reader([text], delimiter=self._delimiter), [])]
        except csv.Error:
            return []
        if not self._header or all(isinstance(number_or_text(cell), str) and cell for cell in cells):
            self._header = cells
            return []
        row = {name: cell for name, cell in zip(self._header, cells, strict=False) if cell.lower() not in MISSING}
        return self._rows.report({name: number_or_text(cell) for name, cell in row.items()}, tuple(sorted(row.items())))


class EventFiles:
    """TensorBoard event files anywhere in a folder; the step counts as the epoch too where no scalar `epoch` does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loaders: dict[str, Any] = {}
        self._looked_at = 0.0
        self._epoch: float | None = None

    def read(self, *, is_over: bool = False) -> list[Mapping[str, Any]]:
        if is_over or time.monotonic() - self._looked_at >= LOOK_S:
            self._looked_at = time.monotonic()
            for path in _event_files(self._folder):
                if path not in self._loaders and (loader := _event_loader(path)) is not None:
                    self._loaders[path] = loader
        deadline = math.inf if is_over else time.monotonic() + EVENTS_S
        reports: list[Mapping[str, Any]] = []
        for loader in self._loaders.values():
            for event in _events(loader):  # what is left of it comes with the next call
                reports += self._take(event)
                if time.monotonic() > deadline:
                    return reports
        return reports

    def _take(self, event: Any) -> Iterator[Mapping[str, Any]]:
        from tensorboard.util import tensor_util

        scalars = {}
        for value in event.summary.value:
            if value.HasField("simple_value"):
                scalars[value.tag] = float(value.simple_value)
            elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
                number = tensor_util.make_ndarray(value.tensor)
                if number.size == 1 and number.dtype.kind in "biuf":
                    scalars[value.tag] = float(number.item())
        self._epoch = scalars.pop("epoch", self._epoch)
        if scalars:
            epoch = event.step if self._epoch is None else self._epoch
            yield {"step": event.step, "epoch": epoch, "metrics": scalars}


class _Rows:
    """From a logger's row to a report; a row that was told before a file was written anew is not told again."""

    def __init__(self, name: str, metric: str) -> None:
        self._name = name
        self._metric = metric
        self._told: set[int] = set()
        self._count = 0

    def report(self, values: Mapping[str, Any], row: Hashable) -> list[Mapping[str, Any]]:
        """At most one report. `row` is what the row is known by again."""
        progress = {COLUMNS[name.lower()]: value for name, value in values.items() if name.lower() in COLUMNS}
        metrics = {name: value for name, value in values.items() if name.lower() not in COLUMNS}
        numbers = {name: value for name, value in metrics.items() if name == self._metric or _is_number(value)}
        if self._metric not in metrics:
            return [{"step": 0, "metrics": numbers}] if numbers else []
        if not progress:
            names = ", ".join(list(metrics)[:12])
            wanted = ", ".join(PROGRESS)
            return [{"problem": f"{self._name} does not say how far the run is (one of {wanted}); it has {names}"}]
        if hash(row) in self._told:
            return []
        self._told.add(hash(row))
        self._count += 1
        counted = {} if "step" in progress else {"step": self._count, "is_counted": True}
        return [{**counted, **progress, "metrics": numbers}]


def metric_file(source: MetricSource | None, run_dir: Path, metric: str) -> Follower | None:
    """What follows the file or folder that `source` names within a run's own folder; None where it names none."""
    if source is None or source.path is None:
        return None
    path = run_dir / source.path
    if source.tensorboard is not None:
        return EventFiles(path)
    return JsonLinesFile(path, metric) if source.jsonl is not None else CsvFile(path, metric)


def can_read_events() -> bool:
    """Whether TensorBoard's reader is installed here."""
    return importlib.util.find_spec("tensorboard") is not None


def _event_files(folder: Path) -> list[str]:
    return sorted(
        os.path.join(root, name)  # noqa: PTH118 - a walk deals in text
        for root, _, names in os.walk(folder)
        for name in names
        if "tfevents" in name and os.path.isfile(os.path.join(root, name))  # noqa: PTH113, PTH118 - a pipe would block
    )


def _event_loader(path: str) -> Any | None:
    """TensorBoard's reader of one file; None when that is gone."""
    # Or it imports TensorFlow where there is one: seconds, and the GPU's memory.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.compat.tensorflow_stub.errors import NotFoundError

    try:
        return EventFileLoader(path)
    except NotFoundError:
        return None


def _events(loader: Any) -> Iterator[Any]:
    """The new events of a file, up to the first that cannot be read."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.tensorflow_stub.errors import OpError

    try:
        yield from loader.Load()
    except (OpError, DecodeError, OSError):
        return


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
