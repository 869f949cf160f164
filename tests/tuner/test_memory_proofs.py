"""Want of memory at one place only: the proof comes there, and says where it was."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.support import short_folder, slot_setup
from tuner.assignment import Assignment, SlotReport
from tuner.jobspec import UserCode
from tuner.probe_process import ProbeHost
from tuner.records import Outcome
from tuner.slot import start_run

LIMIT_MIB = 32.0


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with short_folder() as a_folder:
        shutil.copy(Path(__file__).with_name("memory_classes.py"), a_folder / "mine.py")
        yield a_folder


def prove(
    folder: Path,
    name: str,
    limit_mib: float | None,
    *,
    is_trial: bool = False,
    checkpointing: bool = False,
    environment: Mapping[str, str] | None = None,
    saves: bool = False,
) -> SlotReport:
    setup = slot_setup(
        folder, workload="mine", code=UserCode(str(folder), f"mine.py:{name}"), host_memory_mib=limit_mib
    )
    config: dict[str, Any] = {
        "parameters": {"lr": 1e-6, "batch_size": 4},
        "derived": {"micro_batch": 2, "accumulation": 2, "loss_scale": "auto", "checkpointing": checkpointing},
        "seed": 3,
        "fidelity": {"axis": "samples", "max": 640, "reports": 5},
        "device": "cpu",
        "precision": "fp32",
        "trial": -1,
        "job_id": "job",
        "fit": {"prove": True, "memory_fraction": 0.92},
    }
    if saves:
        config["checkpoint_dir"] = str(folder / "state")
    host = ProbeHost(setup.to_load(), folder / "h", environment or {}, 1.0)
    try:
        if is_trial:
            del config["fit"]
        run = start_run(host, setup, Assignment("f0", config, False, None if is_trial else "prove"))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            report = run.step()
            if report.end is not None:
                return report
        raise AssertionError("the proof has not ended")
    finally:
        host.close()


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("SecondStep", "training step 2"),
        ("InEvaluation", "evaluation after step 10"),
        ("LongestSample", "training step 1"),
        ("InTest", "reading the test data"),
    ],
)
def test_the_proof_finds_what_a_first_step_does_not_show(folder: Path, name: str, stage: str) -> None:
    report = prove(folder, name, LIMIT_MIB)

    assert report.end is not None and report.fit is not None
    assert (report.end.outcome, report.fit["stage"].startswith(stage)) == (Outcome.OUT_OF_MEMORY, True), report


def test_a_proof_reads_back_what_a_paused_trial_would(folder: Path) -> None:
    proofs = [prove(folder, "InResuming", LIMIT_MIB, saves=saves) for saves in (False, True)]
    small = prove(folder, "Small", LIMIT_MIB, saves=True)

    assert [proof.end and proof.end.outcome for proof in proofs] == [Outcome.OK, Outcome.OUT_OF_MEMORY]
    assert proofs[1].fit is not None and proofs[1].fit["stage"] == "reading the state that was saved"
    assert small.end is not None and small.end.outcome == Outcome.OK, small
    assert (folder / "state" / "state.pt").exists()


@pytest.mark.parametrize("name", ["SecondStep", "InEvaluation", "LongestSample", "InTest"])
def test_without_the_limit_the_same_proof_shows_its_peak(folder: Path, name: str) -> None:
    report = prove(folder, name, None)

    assert report.end is not None and report.fit is not None
    assert report.end.outcome == Outcome.OK, report
    assert report.fit["host_peak_bytes"] > LIMIT_MIB * (1 << 20)


def test_what_keeps_more_and_more_is_named_by_its_line(folder: Path) -> None:
    lines = (folder / "mine.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "self.kept.append" in text)

    leaking, small = prove(folder, "Leaking", None), prove(folder, "Small", None)

    assert leaking.end is not None and leaking.end.outcome == Outcome.OK
    assert leaking.warnings["memory_growth"] == 1
    assert f"mine.py:{line} makes what stays" in leaking.health["memory_growth"]
    assert "512 KiB a step" in leaking.health["memory_growth"]
    assert "memory_growth" not in small.warnings


def test_a_trial_warns_of_what_keeps_more_and_more(folder: Path) -> None:
    for name in ("Leaking", "LeakingNumbers"):
        report = prove(folder, name, None, is_trial=True)
        assert report.end is not None and report.end.outcome == Outcome.OK
        assert "mine.py:" in report.health["memory_growth"]
        assert report.warnings["memory_growth"] == 1


def test_a_class_that_needs_little_passes(folder: Path) -> None:
    report = prove(folder, "Small", LIMIT_MIB)

    assert report.end is not None and report.fit is not None
    assert report.end.outcome == Outcome.OK
    assert report.fit["host_peak_bytes"] < LIMIT_MIB * (1 << 20)


def test_what_does_not_fit_may_with_activations_that_are_computed_again(folder: Path) -> None:
    mapped = {"MALLOC_MMAP_THRESHOLD_": "262144"}  # else the C library's heap has more holes than there are activations
    ends = [prove(folder, "Deep", 64, checkpointing=is_on, environment=mapped).end for is_on in (False, True)]
    assert [end and end.outcome for end in ends] == [Outcome.OUT_OF_MEMORY, Outcome.OK]
