"""Several processes of a command, under torchrun, and what the ranks get wrong."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tuner.ranks import (
    CONFIG,
    DERIVED,
    TWO,
    first_point,
    isolation,
    launcher_of,
    probe_processes,
    running,
    until_end,
)
from tests.tuner.support import eventually
from tests.tuner.test_user_code import command, folder, outcome, play, reason, values
from tuner.assignment import Assignment, SlotSetup
from tuner.jobspec import MetricSource
from tuner.records import Outcome
from tuner.slot import SlotRun
from tuner.torchrun import failure

__all__ = ["folder", "isolation"]

pytestmark = pytest.mark.timeout(240)

DDP = """
import os, torch, torch.distributed as dist, x5tune
dist.init_process_group("gloo")
for step in range(1, 11):
    total = torch.ones(1)
    dist.all_reduce(total)
    x5tune.report(step=step, val_loss=float(total) + dist.get_rank())
"""
LEAVE = "dist.destroy_process_group()\n"
PLAIN = """
import os, signal, sys, time
import x5tune
rank = int(os.environ["RANK"])
for step in range(2, 11, 2):
    x5tune.report(step=step, val_loss=float(step + rank))
"""


CAUSE = "Root Cause (first observed failure):\n[0]:\n  rank      : {} (local_rank: 1)\n  exitcode  : {} (pid: 7)\n"


def test_of_what_torchrun_says_the_last_counts_and_imitations_hold_nobody_up() -> None:
    assert failure(CAUSE.format(0, 9) + "said by the script\n" + CAUSE.format(1, 3)) == (1, 3, "")
    assert failure("Root Cause\n rank : 1\n" * 3000) is None
    assert failure("no cause") is None


def test_two_trials_side_by_side_do_not_meet_and_their_leads_report(folder: Path) -> None:
    setups = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        setups.append(command(folder / name, DDP + LEAVE, **TWO))
    with running(setups[0]) as (one, _), running(setups[1]) as (other, _):
        runs = [SlotRun(host, setup, Assignment("t", CONFIG)) for host, setup in zip((one, other), setups, strict=True)]
        points = [first_point(run).points[0].value.number for run in runs]
        ends = [until_end(run) for run in runs]

    assert points == [2.0, 2.0]
    for last in ends:
        assert last.end is not None
        assert last.end.outcome == Outcome.OK, last.log_tail


def test_all_ranks_see_the_same_configuration_and_their_own_rank(folder: Path) -> None:
    text = """
import json, os
config = json.load(open(os.environ["X5TUNE_CONFIG"]))
seen = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")]
open(f"seen-{seen[0]}", "w").write(json.dumps([config["derived"], *seen]))
with open(os.environ["X5TUNE_REPORT"], "a") as file:
    file.write(json.dumps({"step": 10, "metrics": {"val_loss": float(seen[0])}}) + "\\n")
"""
    reports = play(command(folder, text, **TWO), CONFIG)

    assert values(reports) == [(5, 0.0)], "only the lead reports"
    for rank in "01":
        found = json.loads((folder / f"seen-{rank}").read_text())
        assert found == [DERIVED, rank, rank, "2", "127.0.0.1", "1"]


def test_a_pattern_reads_the_leads_lines_only(folder: Path) -> None:
    text = """
import os, time
rank = int(os.environ["RANK"])
time.sleep(0.5 * (1 - rank))
for step in range(2, 11, 2):
    print(f"step {step} val_loss={step + rank / 2}")
"""
    source = MetricSource(stdout=r"step (?P<step>\d+) val_loss=(?P<val_loss>\S+)")

    reports = play(command(folder, text, metrics=source, **TWO), CONFIG)

    assert values(reports) == [(index, 2.0 * index) for index in (1, 2, 3, 4, 5)]
    assert "[rank 1] step 2 val_loss=2.5" in reports[-1].log_tail


def test_a_failing_rank_ends_the_trial_with_its_message_though_another_fails_for_want_of_it(folder: Path) -> None:
    text = "\nif dist.get_rank() == 1: raise ValueError('bad rows')\ndist.barrier()\n"

    reports = play(command(folder, DDP + text, **TWO), CONFIG)

    assert outcome(reports) == Outcome.CRASHED
    how, said = reason(reports).split(": ", 1)  # torch's own threads may abort it as it ends
    assert how in ("rank 1 exited with status 1", "rank 1 killed by SIGABRT")
    assert said == "ValueError: bad rows"
    assert "[rank 1] [rank1]: ValueError: bad rows" in reports[-1].log_tail
    assert eventually(lambda: probe_processes(folder) == [])


@pytest.mark.parametrize(
    ("text", "ending", "said"),
    [
        ("if rank == 1: sys.exit(3)", Outcome.CRASHED, "rank 1 exited with status 3"),
        ("if rank == 0: os.kill(os.getpid(), 11)", Outcome.CRASHED, "rank 0 killed by SIGSEGV"),
        ("import traceback\nif rank == 1:\n    try: [][1]\n    except IndexError: traceback.print_exc()\n"
         "    print('terminate called', flush=True)\n    os.abort()",
         Outcome.CRASHED, "rank 1 killed by SIGABRT: IndexError: list index out of range"),
        ("if rank == 1: raise RuntimeError('CUDA out of memory')", Outcome.OUT_OF_MEMORY, "CUDA out of memory"),
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nif rank == 1: time.sleep(0.5); sys.exit(4)", Outcome.CRASHED,
         "rank 1 exited with status 4"),
    ],
)  # fmt: skip
def test_the_others_of_a_failing_rank_are_ended_and_need_not_agree(
    folder: Path, text: str, ending: Outcome, said: str
) -> None:
    reports = play(command(folder, PLAIN + text + "\nwhile True: time.sleep(1)\n", **TWO), CONFIG)

    assert outcome(reports) == ending
    assert said in reason(reports)
    assert reports[-1].probe.seconds < 28, "torchrun by itself waits 30 s for one that ignores TERM"


def test_a_hanging_rank_is_timed_out_and_no_process_is_left(folder: Path, isolation: str) -> None:
    with running(command(folder, PLAIN + "while rank == 1: time.sleep(1)\n", **TWO)) as (host, setup):
        run = SlotRun(host, setup, Assignment("t", CONFIG))
        first_point(run)
        assert len(probe_processes(folder)) >= 3
        run._setup = replace(setup, silence_seconds=2.0)  # from here on: it starts as slowly as the machine is
        last = until_end(run)

        assert last.end is not None
        assert last.end.outcome == Outcome.TIMED_OUT
        assert probe_processes(folder) == []


def test_a_pruned_command_leaves_no_rank(folder: Path, isolation: str) -> None:
    with running(command(folder, PLAIN + "time.sleep(3600)\n", **TWO)) as (host, setup):
        first_point(SlotRun(host, setup, Assignment("t", CONFIG)))
        assert len(probe_processes(folder)) >= 3
        exited = host.end("pruned")

        assert exited is not None
        assert probe_processes(folder) == []
        assert host.is_alive


def test_a_killed_torchrun_takes_its_ranks_along(folder: Path, isolation: str) -> None:
    with running(command(folder, PLAIN + "time.sleep(3600)\n", **TWO)) as (host, setup):
        run = SlotRun(host, setup, Assignment("t", CONFIG))
        first_point(run)
        assert eventually(lambda: len(probe_processes(folder)) == 5), "torchrun, and for each rank a relay"
        launcher_of(folder, processes=5).kill()
        last = until_end(run)

        assert last.end is not None
        assert last.end.outcome == Outcome.OUT_OF_MEMORY, "as whatever is killed"
        assert eventually(lambda: probe_processes(folder) == [])
        assert host.is_alive


def own_torchrun(folder: Path, text: str) -> SlotSetup:
    setup = command(folder, text, **{**TWO, "environment": {"TMPDIR": str(folder)}})
    assert setup.code is not None
    argv = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node={processes}", "train.py")
    return replace(setup, code=replace(setup.code, argv=argv))


def test_a_command_with_its_own_torchrun_works_and_leaves_nothing_in_tmp(folder: Path) -> None:
    reports = play(own_torchrun(folder, PLAIN), CONFIG)

    assert outcome(reports) == Outcome.OK
    assert values(reports)[-1] == (5, 10.0)
    assert list(folder.glob("torchelastic*")) == []


def test_what_a_torchrun_of_the_users_own_says_of_a_failure_is_understood(folder: Path) -> None:
    reports = play(own_torchrun(folder, PLAIN + "if rank == 1: raise ValueError('bad rows')\n"), CONFIG)

    assert outcome(reports) == Outcome.CRASHED
    assert reason(reports) == "rank 1 exited with status 1: ValueError: bad rows"


def test_an_interpreter_without_torch_is_the_reason(folder: Path) -> None:
    bare = folder / "python3"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o700)
    setup = command(folder, PLAIN, **TWO)
    assert setup.code is not None

    reports = play(replace(setup, code=replace(setup.code, argv=(str(bare), "train.py"))), CONFIG)

    assert outcome(reports) == Outcome.CRASHED
    assert "No module named 'torch'" in reason(reports)
