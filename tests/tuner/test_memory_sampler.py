"""Reading a probe's peak from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from tuner.memory_sampler import MemorySampler

MIB = 1 << 20
CODE = """
import mmap, sys, time
sys.stdin.readline()
held = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.close()
time.sleep(0.2)
again = mmap.mmap(-1, 10 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, 70 << 20, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
print("done", flush=True)
sys.stdin.readline()
"""

PARENT = """
import os, sys, time
print("ready", flush=True)
sys.stdin.readline()
pid = os.fork()
if pid == 0:
    os.setsid()
    held = bytearray(int(sys.argv[1]) << 20)
    time.sleep(0.3)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_peak_of_a_moment_is_not_missed_and_shared_memory_is_not_counted() -> None:
    process = subprocess.Popen([sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    sampler = MemorySampler(os.getpid(), is_command=True)
    time.sleep(0.5)
    before = sampler._peaks[process.pid]

    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    time.sleep(0.2)
    process.communicate("\n", timeout=20)

    sampler.stop()
    grown = sampler._peaks[process.pid] - before
    assert 38 * MIB < grown < 44 * MIB


def test_what_the_parent_holds_does_not_count_for_a_fork() -> None:
    held = bytearray(64 * MIB)
    sampler = MemorySampler(os.getpid(), is_command=False)
    pid = os.fork()
    if pid == 0:
        mine = bytearray(20 * MIB)
        time.sleep(1.0)
        os._exit(len(mine) == len(held))
    os.waitpid(pid, 0)

    sampler.stop()
    assert 19 * MIB < sampler._peaks[pid] < 34 * MIB  # our own thread of the sampler came after the first look


def test_what_takes_more_than_its_cap_is_killed_at_once_and_what_takes_less_is_not() -> None:
    ended = {}
    for mib in (60, 20):
        command = [sys.executable, "-c", PARENT, str(mib)]
        parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        parent.stdout.readline()
        sampler = MemorySampler(parent.pid, is_command=False, cap_bytes=50 * MIB)
        said, _ = parent.communicate("\n", timeout=20)
        sampler.stop()
        ended[mib] = (int(said), sampler.is_over)
    assert ended == {60: (-signal.SIGKILL, True), 20: (0, False)}
