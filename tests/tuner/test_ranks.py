"""Several processes of a class, by our own launcher, and what the ranks get wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.classes import class_setup
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
from tests.tuner.support import eventually, probe_config, short_folder, slot_setup
from tests.tuner.test_user_code import folder, outcome, play, reason, values
from tuner.assignment import Assignment
from tuner.records import Outcome
from tuner.slot import SlotRun, start_run

__all__ = ["folder", "isolation"]

pytestmark = pytest.mark.timeout(240)

RANK_1 = "if os.environ['RANK'] == '1': "
THREAD = "import threading\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"
INSTEAD = """eval_data(self):
        parameters = json.load(open(os.environ["X5TUNE_CONFIG"]))["parameters"]
        exec(parameters.get("instead", ""), {**globals(), "self": self})
        return tuple(part[200:] for part in self.rows)"""
"""Runs the text in the parameter `instead`, in which `self` may get other methods."""


@pytest.fixture(scope="module")
def shared() -> Iterator[Any]:
    """Runs a configuration in one slot after the other run: the reports of a class that does as `instead` says."""
    with short_folder() as place, running(class_setup(place, INSTEAD, before="import json\n", **TWO)) as (host, setup):

        def run(instead: str = "", **changes: Any) -> list[Any]:
            parameters = {**CONFIG["parameters"], "instead": instead}
            slot = SlotRun(host, setup, Assignment("t", {**CONFIG, "parameters": parameters, **changes}))
            reports = [slot.step()]
            while reports[-1].end is None:
                reports.append(slot.step())
            assert probe_processes(place) == []
            return reports

        yield run


@pytest.mark.parametrize(
    ("accumulation", "axis", "precision"),
    [(1, "samples", "fp32"), (4, "samples", "fp32"), (2, "steps", "bf16")],
)
def test_two_processes_come_to_what_one_comes_to_with_the_same_batch(
    shared: Any, folder: Path, accumulation: int, axis: str, precision: str
) -> None:
    fidelity = {"axis": axis, "max": 640 if axis == "samples" else 10, "reports": 5}
    micro = {"micro_batch": 32 // accumulation, "accumulation": accumulation, "processes": 2}
    changes = {"fidelity": fidelity, "precision": precision}

    alone = values(play(class_setup(folder), probe_config(lr=0.05, width=8, **changes)))
    together = values(shared(derived=micro, **changes))

    tolerance = 1e-4 if precision == "fp32" else 2e-2
    assert [index for index, _ in together] == [1, 2, 3, 4, 5]
    assert [value for _, value in together] == pytest.approx([value for _, value in alone], rel=tolerance)


def test_a_run_of_several_processes_that_the_clock_ends_ends_on_all_of_them(shared: Any) -> None:
    slow = "self.loss = lambda model, batch: time.sleep(0.01) or model(batch[0]).mean()"

    reports = shared(slow, fidelity={"axis": "seconds", "max": 0.4, "reports": 4})

    assert outcome(reports) == Outcome.OK
    assert values(reports)[-1][0] == 4


def test_the_loss_of_a_class_sees_its_own_model_and_may_leave_parameters_unused(shared: Any) -> None:
    text = """
def model(config):
    found = nn.ModuleDict({"used": nn.Linear(6, 2), "unused": nn.Linear(6, 2)})
    found.smoothing = 0.1
    return found
def loss(model, batch):
    return nn.functional.cross_entropy(model["used"](batch[0]), batch[1], label_smoothing=model.smoothing)
self.model, self.loss = model, loss
self.evaluate = lambda model, data: 1.0
"""
    reports = shared(text)

    assert outcome(reports) == Outcome.OK, reports[-1].log_tail
    assert "find_unused_parameters" not in reports[-1].log_tail


MASKED = """
class Masked(nn.Linear):
    def forward(self, rows):
        if {when} and len(self._buffers.get("mask", [])) < len(rows):
            self._buffers["mask"] = torch.ones(len(rows), 6)
        return super().forward(rows * self._buffers.get("mask", rows[:1] * 0 + 1)[:1])
self.model = lambda config: torch.manual_seed(1) and Masked(6, 2)
"""


@pytest.mark.parametrize("when", ["True", "not self.training"], ids=["reshaped", "made"])
def test_a_buffer_that_only_the_leads_evaluation_reshapes_or_makes_is_there_on_all_ranks(
    shared: Any, when: str
) -> None:
    """Torch copies the lead's buffers to the others before each step, and ends those that have others."""
    reports = shared(MASKED.format(when=when))

    assert outcome(reports) == Outcome.OK, reports[-1].log_tail
    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]


def test_what_the_ranks_print_is_told_apart(shared: Any) -> None:
    reports = shared("print('here', os.environ['RANK'], os.environ['OMP_NUM_THREADS'])")

    lines = reports[-1].log_tail.splitlines()

    assert "here 0 1" in lines
    assert "[rank 1] here 1 1" in lines


@pytest.mark.parametrize(
    ("instead", "ending", "said"),
    [
        (f"{RANK_1}raise ValueError('bad rows')", Outcome.CRASHED, "rank 1: ValueError: bad rows"),
        (f"{RANK_1}os.kill(os.getpid(), 11)", Outcome.CRASHED, "rank 1 killed by SIGSEGV"),
        (f"{RANK_1}os.kill(os.getpid(), 9)", Outcome.OUT_OF_MEMORY, "rank 1 killed (SIGKILL)"),
        (f"{RANK_1}raise MemoryError('no room')", Outcome.OUT_OF_MEMORY, "rank 1: MemoryError: no room"),
        (f"{RANK_1}os._exit(0)", Outcome.CRASHED, "rank 1 exited with status 0"),
        ("self.evaluate = lambda model, data: 1 / 0", Outcome.CRASHED, "rank 0: ZeroDivisionError"),
        ("self.evaluate = lambda model, data: float('nan')", Outcome.DIVERGED, "val_loss is nan at report 1"),
        ("self.loss = lambda model, batch: model(batch[0]).mean() * float('inf')", Outcome.DIVERGED,
         "training loss at step 1 is"),
    ],
)  # fmt: skip
def test_one_failing_rank_ends_the_trial_at_once_with_its_message_and_the_next_goes_on(
    shared: Any, instead: str, ending: Outcome, said: str
) -> None:
    reports = shared(instead)

    assert (outcome(reports), said in reason(reports)) == (ending, True), reason(reports)
    if said.startswith("rank 1: "):
        assert "[rank 1] Traceback (most recent call last)" in reports[-1].log_tail
    assert outcome(shared()) == Outcome.OK


def test_a_function_cannot_have_several_processes(folder: Path) -> None:
    setup = class_setup(folder, **TWO)
    (folder / "train.py").write_text("def Rows(config, probe): ...")

    assert "is a function, which runs in one process; resources.processes is 2" in reason(play(setup, CONFIG))


def test_a_hanging_rank_is_timed_out_and_no_process_is_left(folder: Path, isolation: str) -> None:
    hangs = f"eval_data(self):\n        {RANK_1}time.sleep(3600)\n        return self.rows"
    with running(class_setup(folder, hangs, **{**TWO, "silence_seconds": 3.0})) as (host, setup):
        host.ensure_ready()
        run = SlotRun(host, setup, Assignment("t0", CONFIG))
        run.step()
        assert eventually(lambda: len(probe_processes(folder)) == 3)
        last = until_end(run)

        assert last.end is not None
        assert last.end.outcome == Outcome.TIMED_OUT
        assert probe_processes(folder) == []


def test_a_pruned_trial_leaves_no_rank_and_its_slot_takes_the_next_one(folder: Path, isolation: str) -> None:
    with running(class_setup(folder, **TWO)) as (host, setup):
        first_point(SlotRun(host, setup, Assignment("t0", CONFIG)))
        assert len(probe_processes(folder)) == 3
        began = time.monotonic()
        exited = host.end("pruned", grace_s=20.0)

        assert exited is not None
        assert exited.said == {"type": "end", "outcome": "stopped", "reason": "pruned"}
        assert time.monotonic() - began < 20.0, "all ranks have left by themselves"
        assert probe_processes(folder) == []
        last = until_end(SlotRun(host, setup, Assignment("t1", CONFIG)))
        assert last.end is not None
        assert last.end.outcome == Outcome.OK


def test_a_killed_launcher_takes_its_ranks_along(folder: Path, isolation: str) -> None:
    with running(class_setup(folder, **TWO)) as (host, setup):
        run = SlotRun(host, setup, Assignment("t0", CONFIG))
        first_point(run)
        launcher_of(folder, processes=3).kill()
        last = until_end(run)

        assert last.end is not None
        assert last.end.outcome == Outcome.OUT_OF_MEMORY, "as whatever is killed"
        assert eventually(lambda: probe_processes(folder) == [])
        assert host.is_alive


def test_a_class_that_cannot_be_forked_has_fresh_ranks_with_equal_results(shared: Any, folder: Path) -> None:
    fresh = play(class_setup(folder, before=THREAD, **TWO), CONFIG)

    assert values(fresh) == values(shared())


def test_a_built_in_may_have_several_processes_and_its_memory_is_measured_so(tmp_path: Path, folder: Path) -> None:
    built_in = slot_setup(folder, workload="tabular-mlp", environment={"X5TUNE_DATA": str(tmp_path)}, **TWO)
    with running(built_in) as (host, setup):
        trained = until_end(SlotRun(host, setup, Assignment("t", probe_config(derived=DERIVED))))
        found = {}
        for stage, what in (("predict", {"predict": [8, 16]}), ("prove", {"prove": True})):
            config = probe_config(lr=1e-6, batch_size=16, derived={**DERIVED, "micro_batch": 16})
            config["fit"] = {**what, "memory_fraction": 0.92}
            config["checkpoint_dir"] = str(tmp_path / "state")  # the lead saves, all read it back
            fit: Any = stage
            found[stage] = until_end(start_run(host, setup, Assignment("f", config, judged=False, fit=fit)))

    for report in (trained, *found.values()):
        assert report.end is not None
        assert report.end.outcome == Outcome.OK, report.log_tail
    predicted, proven = found["predict"].fit, found["prove"].fit
    assert predicted is not None
    assert [one["micro_batch"] for one in predicted["predictions"]] == [8, 16]
    assert proven is not None
    assert proven["samples_per_s"] > 0
    assert proven["host_peak_bytes"] > 0
    assert (tmp_path / "state" / "state.pt").exists()


def test_a_range_test_is_made_by_all_ranks_and_a_diagnosis_by_one_with_the_whole_batch() -> None:
    rates = {"rates": {"low": 1e-3, "high": 0.1, "runs": 6.0, "seconds": 60.0}}
    diagnosis = {"diagnose": {"metric": "val_loss", "direction": "minimize", "seconds": 1.0}}
    with short_folder() as place, running(class_setup(place, **TWO)) as (host, setup):
        tested = until_end(start_run(host, setup, Assignment("r", {**CONFIG, "fit": rates}, False, "rates")))
        looked = until_end(start_run(host, setup, Assignment("d", {**CONFIG, "fit": diagnosis}, False, "diagnose")))
    assert tested.fit is not None
    assert looked.fit is not None
    assert len(tested.fit["rates"]["rates"]) == 5
    assert min(rate["loss"] for rate in tested.fit["rates"]["rates"]) < tested.fit["rates"]["untrained"]
    assert "crashes" not in [verdict["code"] for verdict in looked.fit["verdicts"]]
