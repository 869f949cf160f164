"""Runs that are paused at every report and gone on with in another process, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuner.assignment import Assignment, SlotReport, SlotSetup
from tuner.probe_process import ProbeHost
from tuner.records import Outcome
from tuner.reports import Mark
from tuner.slot import SlotRun

Curve = list[tuple[int, float, int, float | None]]


def curve(reports: list[SlotReport]) -> Curve:
    """Index, position, step and value of every point."""
    return [(p.index, p.position, p.step, p.value.number) for report in reports for p in report.points]


def play_on(
    host: ProbeHost, setup: SlotSetup, config: dict[str, Any], mark: Mark | None = None, *, pauses: bool = False
) -> list[SlotReport]:
    """One probe to its end, with every report; with `pauses` it is paused at the first that can be."""
    resumed = {"resume_at": mark.resume_at} if mark else {}
    run = SlotRun(host, setup, Assignment("t0", {**config, **resumed}, mark=mark))
    reports = [run.step()]
    while reports[-1].end is None:
        if pauses and reports[-1].points and reports[-1].can_pause:
            run.pause()
        reports.append(run.step())
    return reports


def paused_at_every_report(
    host: ProbeHost, setup: SlotSetup, config: dict[str, Any], folder: Path
) -> tuple[list[SlotReport], int]:
    """All reports of a trial that is paused as often as can be, and how many probes it took."""
    told: list[SlotReport] = []
    mark: Mark | None = None
    for number in range(1, 100):
        own = {"checkpoint_dir": str(folder / str(number))}
        if mark is not None:
            own["resume_dir"] = str(folder / str(number - 1))
        reports = play_on(host, setup, {**config, **own}, mark, pauses=True)
        told.extend(reports)
        end, mark = reports[-1].end, reports[-1].mark
        assert end is not None
        if end.outcome != Outcome.PAUSED:
            return told, number
    raise AssertionError("it never comes to its end")


def open_host(setup: SlotSetup) -> ProbeHost:
    return ProbeHost(setup.to_load(), Path(setup.folder) / "h", setup.own_environment, setup.threads)
