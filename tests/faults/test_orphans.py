"""What a dead child leaves behind is found and ended, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from service.children import import_path
from tests.service.support import wait_for

SCRIPT = """
import subprocess, sys, time
from service.children import adopt_orphans, end_orphans
adopt_orphans()
ours = subprocess.Popen(["sleep", "60"])
leaver = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True, stdout=2).pid, flush=True)"
orphan = subprocess.run([sys.executable, "-c", leaver], stdout=subprocess.PIPE, text=True).stdout
print(ours.pid, orphan, end="", flush=True)
sys.stdin.readline()
end_orphans({ours.pid})
print("swept", flush=True)
sys.stdin.readline()
ours.kill()
ours.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_orphans_are_ended_and_our_own_children_are_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **import_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ours, orphan = (psutil.Process(int(pid)) for pid in process.stdout.readline().split())
        wait_for(lambda: orphan.ppid() == process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "swept\n"

        assert not orphan.is_running()
        assert ours.is_running()
        process.stdin.write("\n")
