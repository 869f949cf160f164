"""What one of several processes does: find the others, train with them, say how it ended.

They find each other through a file in the probe's folder, so runs side by side cannot meet.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from workloads.channel import ChannelProbe, read_config
from workloads.child import can_pause, connected, play, start
from workloads.contract import ProbeConfig, Workload
from workloads.launcher import Said
from workloads.team import Team, TeamProbe

DEVICE_PEAKS = ("peak_bytes", "allocated_bytes", "alloc_retries")
COLLECTIVE_TIMEOUT = datetime.timedelta(days=7)
"""The slot's limits end a rank that hangs; a long evaluation on the lead is no fault of the others, who wait for it."""


def run_rank(workload: Workload, config_path: str, control_path: str, end_file: int) -> NoReturn:
    """Train one rank. How it ended goes to the descriptor `end_file`; then it waits for the launcher to end it.

    It stays because its end of a connection has to: what another rank still reads would be lost with it.
    """
    config = read_config(Path(config_path).read_text(encoding="utf-8"))
    team = Team(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    tokens = getattr(workload, "tokens_per_sample", None)
    measured: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        lead = None
        if team.is_lead:
            connection = stack.enter_context(connected(control_path))
            lead = ChannelProbe(config, connection, tokens, lambda: can_pause(workload, config))

        def train() -> None:
            if config.fit is not None and ("predict" in config.fit or "diagnose" in config.fit):
                if lead is not None:  # what is foretold or found of one is so of all
                    start(workload, alone(config), lead, measured)
                return
            join(team, config.device, Path(config_path).with_name("rendezvous"))
            probe = TeamProbe(team, config, lead, tokens)
            is_share = config.fit is not None and "prove" in config.fit
            start(workload, shared(config, team) if is_share else config, probe, measured)
            if config.fit is not None:
                measured.update(largest(team.gathered(measured)))

        end = play(train)
    sys.stdout.flush()
    os.write(end_file, Said(time.monotonic(), end, measured).line())
    while True:
        signal.pause()


def alone(config: ProbeConfig) -> ProbeConfig:
    """As a run of one process: of its share, where phase fit asks for that much, else of the whole batch."""
    derived = {**config.derived, "processes": 1}
    if config.fit is not None and "predict" not in config.fit:
        derived["accumulation"] = int(derived["accumulation"]) * int(config.derived["processes"])
    return replace(config, derived=derived)


def shared(config: ProbeConfig, team: Team) -> ProbeConfig:
    """A proof asks for the share of one process; together they train so many of these."""
    batch_size = int(config.parameters["batch_size"]) * team.size
    return replace(config, parameters={**config.parameters, "batch_size": batch_size})


def largest(measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What the lead has measured, with the device memory of the rank that took most."""
    fits = [one["fit"] for one in measured if "fit" in one]
    peaks = {name: max(fit[name] for fit in fits) for name in DEVICE_PEAKS if all(name in fit for fit in fits)}
    return {"fit": {**fits[0], **peaks}} if fits else {}


def join(team: Team, device: str, rendezvous: Path) -> None:
    """Wait for the other ranks at the file `rendezvous`. GPUs talk through NCCL, everything on the CPU through gloo."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    store = FileStore(str(rendezvous), team.size)
    dist.init_process_group(backend, store=store, rank=team.rank, world_size=team.size, timeout=COLLECTIVE_TIMEOUT)
