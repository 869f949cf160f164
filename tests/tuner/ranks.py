"""What the tests of several processes a trial share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tuner.support import probe_config, processes_in
from tuner import probe_process
from tuner.assignment import SlotReport, SlotSetup
from tuner.probe_process import ProbeHost, isolation_prefix
from tuner.slot import SlotRun

DERIVED = {"micro_batch": 32, "accumulation": 1, "processes": 2}
CONFIG = probe_config(lr=0.05, width=8, derived=DERIVED)
TWO: dict[str, Any] = {"processes": 2, "cpus": 2.0, "silence_seconds": 60.0}


@pytest.fixture(params=["namespace", "fallback"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "fallback":
        monkeypatch.setattr(probe_process, "isolation_prefix", tuple)
    elif not isolation_prefix():
        pytest.skip("the kernel refuses PID namespaces here")
    return str(request.param)


@contextmanager
def running(setup: SlotSetup) -> Iterator[tuple[ProbeHost, SlotSetup]]:
    """A slot for `setup`, closed again."""
    host = ProbeHost(setup.to_load(), Path(setup.folder) / "h", setup.own_environment, setup.threads)
    try:
        yield host, setup
    finally:
        host.close()


def first_point(run: SlotRun) -> SlotReport:
    report = run.step()
    while not report.points:
        assert report.end is None, report
        report = run.step()
    return report


def until_end(run: SlotRun) -> SlotReport:
    report = run.step()
    while report.end is None:
        report = run.step()
    return report


def probe_processes(folder: Path) -> list[psutil.Process]:
    """The launcher and the ranks: what works in the user's folder itself, while the warm parent works below it."""
    found = []
    for process in processes_in(folder):
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except psutil.Error:
            continue
    return found


def launcher_of(folder: Path, processes: int) -> psutil.Process:
    """Of so many processes of a probe the one that has started the others."""
    found = probe_processes(folder)
    assert len(found) == processes
    pids = {process.pid for process in found}
    (launcher,) = (process for process in found if process.ppid() not in pids)
    return launcher
