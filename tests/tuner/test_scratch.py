"""Temporary folders of commands: removed at the end, whatever that is, or by the next command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.scratch import sweep

HOLD = "import time; from tuner.scratch import scratch\nwith scratch('x5d-'): print(flush=True); time.sleep(60)"


def holder(folder: Path) -> subprocess.Popen[bytes]:
    """A process with a folder of its own in `folder`."""
    environment = {"TMPDIR": str(folder), "PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_process_that_is_told_to_end_removes_its_folder(tmp_path: Path, number: signal.Signals) -> None:
    with holder(tmp_path) as process:
        process.send_signal(number)
        assert process.wait(10) != 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_has_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path: Path) -> None:
    with holder(tmp_path) as killed:
        killed.kill()
    (left,) = tmp_path.iterdir()
    (tmp_path / "x5d-of-something-else").mkdir()
    with holder(tmp_path) as living:  # which sweeps when it starts
        assert not left.exists()
        sweep(tmp_path, "x5d-")
        assert len(list(tmp_path.iterdir())) == 2
        living.terminate()
