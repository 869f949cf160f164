"""What one of several processes does: find the others, train with them, say how it ended.

They find each other through a file in the probe's folder, so runs side by side cannot meet.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from workloads.channel import ChannelProbe, read_config
from workloads.child import connected, play
from workloads.contract import Workload
from workloads.team import Team, TeamProbe

COLLECTIVE_TIMEOUT = datetime.timedelta(days=7)
"""The slot's limits end a rank that hangs; a long evaluation on the lead is no fault of the others, who wait for it."""


def run_rank(workload: Workload, config_path: str, control_path: str, end_file: int) -> int:
    """Train one rank; returns its exit status. How it ended goes to the descriptor `end_file` as JSON."""
    config = read_config(Path(config_path).read_text(encoding="utf-8"))
    team = Team(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    tokens = getattr(workload, "tokens_per_sample", None)
    with contextlib.ExitStack() as stack:
        lead = ChannelProbe(config, stack.enter_context(connected(control_path)), tokens) if team.is_lead else None

        def train() -> None:
            join(team, config.device, Path(config_path).with_name("rendezvous"))
            workload.run(config, TeamProbe(team, config, lead, tokens))

        end = play(train)
    sys.stdout.flush()
    os.write(end_file, json.dumps({"at": time.monotonic(), **asdict(end)}).encode() + b"\n")
    return end.status


def join(team: Team, device: str, rendezvous: Path) -> None:
    """Wait for the other ranks at the file `rendezvous`. GPUs talk through NCCL, everything on the CPU through gloo."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    store = FileStore(str(rendezvous), team.size)
    dist.init_process_group(backend, store=store, rank=team.rank, world_size=team.size, timeout=COLLECTIVE_TIMEOUT)
