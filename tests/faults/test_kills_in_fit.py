"""Phase `fit` of a real service loses its runner and then a probe: the job goes on, and no proof is made in vain."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.faults import free_port, short_folder
from bench.faults_checks import violations
from bench.faults_service import ServiceUnderFire, strike
from service import migrate
from service.database import Database
from service.models import Job
from service.settings import Settings
from tests.service.support import wait_for

SCRIPT = """
import json, os, sys, time
micro, log = int(sys.argv[1]), sys.argv[2]
with open(log, "a") as runs:
    print(micro, file=runs)
held = bytearray(micro << 20)
time.sleep(float(sys.argv[3]))
for step in range(1, 6):
    with open(os.environ["X5TUNE_REPORT"], "a") as report:
        print(json.dumps({"step": step, "metrics": {"val_loss": 1 / step}, "samples": step * 64}), file=report)
"""
PROOF_S = 1.5


def spec(folder: Path) -> dict[str, Any]:
    command = ["python", "train.py", "{micro_batch}", str(folder / "runs"), str(PROOF_S)]
    return {
        "workload": {"command": command, "folder": str(folder)},
        "objective": {"metric": "val_loss", "direction": "minimize"},
        "search": {"batch_size": {"choices": [16, 64]}, "lr": 0.1},
        "baseline": {"batch_size": 64},
        "fidelity": {"axis": "samples", "max": 320, "reports": 5},
        "budget": {"trials": 2},
        "confirm": {"seeds": 0},
        "limits": {"host_memory_mib": 48},
    }


class Watched:
    """A job as SQL has it, and the runs that its script has begun, by micro-batch in their order."""

    def __init__(self, folder: Path, database: Database, job_id: str) -> None:
        self._folder, self._database, self._job_id = folder, database, job_id

    @property
    def runs(self) -> list[int]:
        path = self._folder / "runs"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def row(self) -> Job:
        with self._database.read() as session:
            return session.get_one(Job, self._job_id)

    @property
    def proofs(self) -> list[dict[str, Any]]:
        return list((self.row.fit or {}).get("proofs", []))


def probes(service: ServiceUnderFire) -> list[psutil.Process]:
    """The processes that run the script, the deepest last."""
    found = []
    for each in service.processes():
        with contextlib.suppress(psutil.Error):
            if "train.py" in each.cmdline():
                found.append(each)
    return found


def kill(processes: list[psutil.Process]) -> int:
    """How many of them were still there to be killed."""
    return sum([strike(each, signal.SIGKILL) for each in processes])


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_a_killed_runner_repeats_only_its_proof_and_a_killed_probe_none() -> None:
    with tempfile.TemporaryDirectory(prefix="x5f", dir=short_folder()) as name:
        folder = Path(name)
        code = folder / "code"
        code.mkdir()
        (code / "train.py").write_text(SCRIPT)
        url = f"sqlite:///{folder / 'x5tune.db'}"
        migrate.upgrade(Settings(folder / "home", url))
        service = ServiceUnderFire(folder, url, free_port(), lease_s=5.0)
        with service.running(), contextlib.closing(Database(url)) as database:
            job = Watched(code, database, service.submit(spec(code), "fit"))

            wait_for(lambda: len(job.proofs) == 1 and len(job.runs) == 2, timeout_s=60)
            assert kill(service.find("runner"))
            wait_for(lambda: len(job.proofs) == 2 and len(job.runs) == 4, timeout_s=60)
            assert kill(probes(service))
            wait_for(lambda: job.row.state == "succeeded", timeout_s=90)

            sizes = [proof["micro_batch"] for proof in job.proofs]
            in_fit = job.runs[: len(sizes) + 1]
            assert Counter(in_fit) == Counter([*sizes, sizes[1]]), "only the proof that the runner took with it"
            assert len(set(sizes)) == len(sizes)
            assert [proof["fits"] for proof in job.proofs[:3]] == [False, True, False], "a killed probe proves nothing"
            assert job.row.fit is not None and job.row.fit["state"] == "done"
            assert sum(proof["seconds"] for proof in job.proofs) <= job.row.fit["device_seconds"] + 1e-6
            assert violations(database) == {}
