"""Where reports come from besides the control socket: a file that the probe appends to, patterns in its output."""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import regex

from tuner.jobspec import MetricSource
from workloads.contract import PROGRESS

MAX_LINE_BYTES = 1 << 20
READ_BYTES = 1 << 20
OTHER_RANK = re.compile(rb"\[rank [1-9]\d*\] ")  # how `workloads.relay` begins the lines of all but the lead
TAIL_BYTES = 64
MATCH_S = 1.0
"""What a pattern may take of the CPU for one piece of output: some take for ever on a line that almost matches."""


class Lines:
    """Splits bytes into whole lines; one that is longer than MAX_LINE_BYTES is dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_dropping = False

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._is_dropping and lines:
            del lines[0]
            self._is_dropping = False
        if len(self._rest) > MAX_LINE_BYTES or self._is_dropping:
            self._rest, self._is_dropping = b"", True
        return lines

    def flush(self) -> list[bytes]:
        """The last line, if it has no end."""
        last, self._rest = self._rest, b""
        return [last] if last.strip() else []


class GrowingFile:
    """The whole new lines of a regular file; it may not exist yet, and is read anew when it has been written anew.

    That is told by what was read last being where it was.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._tail = b""
        self._lines = Lines()
        self.times_begun = 0

    def read(self, *, is_over: bool = False) -> list[bytes]:
        """The new lines: one piece of the file, or with `is_over` all that is left of it."""
        lines: list[bytes] = []
        while data := self._read():
            lines += self._lines.feed(data)
            if not is_over:
                break
        return lines

    def rest(self) -> list[bytes]:
        """The last line, if it has no end."""
        return self._lines.flush()

    def _read(self) -> bytes:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return b""
            if os.pread(file, len(self._tail), self._offset - len(self._tail)) != self._tail:
                self._offset, self._tail, self._lines = 0, b"", Lines()
            data = os.pread(file, READ_BYTES, self._offset)
        except OSError:
            return b""
        finally:
            os.close(file)
        self.times_begun += bool(data) and self._offset == 0
        self._offset += len(data)
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        return data


class ReportFile:
    """The file of JSON lines that X5TUNE_REPORT names."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path)

    def read(self, *, is_over: bool = False) -> list[Mapping[str, Any]]:
        """What has been appended since the last call."""
        return [json_report(line) for line in self._file.read(is_over=is_over) if line.strip()]


class OutputPattern:
    """Reads reports from lines of output by a regular expression with named groups.

    Either the groups `name` and `value`, or one group called as the metric (what an identifier cannot hold becomes
    `_`); the groups of PROGRESS say how far the run is. Without `step` the matches are counted. A pattern that takes
    longer than MATCH_S is a problem, which is reported, and is not tried again.
    """

    def __init__(self, pattern: str, metric: str, processes: int = 1) -> None:
        self._pattern: regex.Pattern[str] | None = regex.compile(pattern)
        self._has_ranks = processes > 1
        self._metric = metric
        self._group = MetricSource.group_name(metric)
        self._lines = Lines()
        self._count = 0

    def feed(self, data: bytes) -> Iterator[Mapping[str, Any]]:
        """The reports in new output."""
        return self._matches(self._lines.feed(data))

    def flush(self) -> Iterator[Mapping[str, Any]]:
        """The report in a last line without an end."""
        return self._matches(self._lines.flush())

    def _matches(self, lines: list[bytes]) -> Iterator[Mapping[str, Any]]:
        left_s = MATCH_S
        for line in lines:
            if self._pattern is None or (self._has_ranks and OTHER_RANK.match(line)):
                continue
            text, began = line.decode("utf-8", "replace"), time.thread_time()
            try:
                found = self._pattern.search(text, timeout=left_s)
            except TimeoutError:
                self._pattern = None
                yield {"problem": _too_slow(text)}
                return
            left_s = max(1e-3, left_s - (time.thread_time() - began))
            if found:
                yield self._report({name: text for name, text in found.groupdict().items() if text is not None})

    def _report(self, groups: dict[str, str]) -> Mapping[str, Any]:
        self._count += 1
        report: dict[str, Any] = {"step": self._count}
        for axis in PROGRESS:
            if axis in groups:
                report[axis] = number_or_text(groups.pop(axis))
        if "name" in groups and "value" in groups:
            metrics = {groups["name"]: groups["value"]}
        else:
            metrics = {self._metric if name == self._group else name: text for name, text in groups.items()}
        return {**report, "metrics": {name: number_or_text(text) for name, text in metrics.items()}}


def _too_slow(line: str) -> str:
    return (
        f"metrics.stdout takes more than {MATCH_S:g} s to tell whether it matches the line {line[:80]!r}: "
        r"write what the numbers stand between, and \S+ for a number, without repetitions inside repetitions"
    )


def number_or_text(text: str) -> float | str:
    """A number where the text is one; a report with text is refused by name later."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def parsed(line: bytes) -> Mapping[str, Any]:
    """A line that a probe has written; what is not a JSON object becomes an empty report, which nobody can read."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def json_report(line: bytes) -> Mapping[str, Any]:
    """A line of a report file: as over the socket, or flat, as loggers write it."""
    message = parsed(line)
    if not message:
        return {
            "problem": f"wrote a line to X5TUNE_REPORT that is no JSON object: {line[:80].decode(errors='replace')!r}"
        }
    if "metrics" not in message:  # what does not say how far it is, is a metric
        numbers = {n: v for n, v in message.items() if n not in PROGRESS and isinstance(v, int | float)}
        message = {**{n: v for n, v in message.items() if n in PROGRESS}, "metrics": numbers}
    return message


def output_pattern(source: MetricSource | None, metric: str, processes: int = 1) -> OutputPattern | None:
    """The pattern that a job asks for, if any; of several processes it reads the lead's lines."""
    return None if source is None or source.stdout is None else OutputPattern(source.stdout, metric, processes)
