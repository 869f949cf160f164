"""A user's command as several processes: under torchrun, unless it starts them itself.

`python train.py --lr 0.1` becomes `python -m torch.distributed.run ... python -I relay.py python train.py --lr 0.1`:
the command's own interpreter runs torchrun, and each rank runs the command as it stands below `workloads.relay`.
torchrun meets at a port that the kernel gives it (`--standalone`), so trials side by side cannot collide.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

from tuner.command import TemplateError, placeholders

RELAY = str(Path(__file__).resolve().parents[1] / "workloads" / "relay.py")
LAUNCHERS = frozenset(
    ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "torch.distributed.run",
     "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner")
)  # fmt: skip
MAX_CAUSE_CHARS = 2000
_ROOT_CAUSE = re.compile(r"Root Cause.*?\n *rank *: (\d+).*?\n *exitcode *: (-?\d+)", re.DOTALL)
_TORCHRUNS_LOG = re.compile(r"^[WE]\d{4} .*elastic/", re.MULTILINE)
_PYTHON = re.compile(r"python[0-9.]*[a-z]?|pypy[0-9.]*")


def starts_its_processes(argv: Sequence[str]) -> bool:
    """Whether the command is a launcher itself, or is told how many processes there are."""
    return takes_processes(argv) or any(PurePath(word).name in LAUNCHERS for word in _program(argv))


def takes_processes(argv: Sequence[str]) -> bool:
    """Whether the placeholder {processes} is in the command."""
    try:
        return any("processes" in placeholders(argument) for argument in argv)
    except TemplateError:
        return False


def interpreter_at(argv: Sequence[str]) -> int | None:
    """Where in the command the Python interpreter is: `env A=1 python train.py` has it at 2."""
    words = _program(argv)
    return next((index for index, word in enumerate(words) if _PYTHON.fullmatch(PurePath(word).name)), None)


def launched(template: Sequence[str], argv: Sequence[str], processes: int) -> list[str]:
    """`argv`, which is `template` filled in, as it is started for so many processes."""
    at = None if processes == 1 or starts_its_processes(template) else interpreter_at(template)
    if at is None:
        return list(argv)
    python = argv[at]
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return [*argv[:at], *torchrun, "--local-addr=127.0.0.1", "--no-python", python, "-I", RELAY, *argv[at:]]


def meeting_place() -> dict[str, str]:
    """Variables for processes that meet on this machine: gloo uses the loopback, and a torchrun of the user's own takes
    a port that is free instead of the one that all of them would take.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {"GLOO_SOCKET_IFNAME": loopback, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "localhost:0"}


def failure(output: str) -> tuple[int, int, str] | None:
    """What torchrun says in `output` of the rank that failed first: rank, status, and what was printed before.

    None where torchrun has not said it.
    """
    start = output.rfind("Root Cause")  # torchrun's words come last, whatever the script has printed
    found = _ROOT_CAUSE.match(output[start : start + MAX_CAUSE_CHARS]) if start >= 0 else None
    if found is None:
        return None
    log = _TORCHRUNS_LOG.search(output)
    return int(found[1]), int(found[2]), output[: log.start()] if log else ""


def _program(argv: Sequence[str]) -> Sequence[str]:
    """The words up to the script, or to the module after -m: what follows is the script's own."""
    for index, word in enumerate(argv):
        if word == "-m":
            return argv[: index + 2]
        if word.endswith((".py", ".sh")):
            return argv[:index]
    return argv[:3]
