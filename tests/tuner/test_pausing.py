"""A trial that is paused at every report and gone on with by other processes has the curve of one that never was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tuner.classes import class_setup
from tests.tuner.pausing import curve, open_host, paused_at_every_report, play_on
from tests.tuner.ranks import TWO
from tests.tuner.support import probe_config, probe_host, short_folder, slot_setup
from tests.tuner.test_user_code import command, function, outcome, reason
from tuner.assignment import SlotSetup
from tuner.probe_process import ProbeHost
from tuner.records import Outcome
from workloads.catalog import manifest

pytestmark = pytest.mark.timeout(240)

SAMPLES = {"digits-cnn": 960, "byte-lm": 96, "tabular-mlp": 960, "quadratic": 1600}
REPORTS = 4
NOISY = """model(self, config):
        import numpy, random
        self.noise = lambda: float(numpy.random.rand()) + random.random()
        return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 2))"""
NOISY_LOSS = """loss(self, model, batch):
        inputs, labels = batch
        return nn.functional.cross_entropy(model(inputs + 0.1 * self.noise()), labels)"""
PLAIN_EVALUATE = """evaluate(self, model, data):
        return nn.functional.cross_entropy(model(data[0]), data[1])"""
SCRIPT = """
import json, random, x5tune

def train(config, probe=None):
    state = {"step": 0, "x": 3.0, "random": None}
    random.seed(config["seed"])
    def save(path):
        state["random"] = random.getstate()
        with open(path, "w") as file: json.dump(state, file)
    def load(path):
        with open(path) as file: state.update(json.load(file))
        version, internal, gauss = state["random"]
        random.setstate((version, tuple(internal), gauss))
    x5tune.checkpoint(save=save, load=load)
    report = probe.report if probe else x5tune.report
    while state["step"] < 10:
        state["step"] += 1
        state["x"] -= 0.1 * (state["x"] - random.random())
        report(step=state["step"], val_loss=(state["x"] - 1) ** 2)

if __name__ == "__main__":
    train(x5tune.config())
"""
SWALLOWED = SCRIPT.replace("report(step=state", "\n        try: report(step=state").replace(
    "** 2)", "** 2)\n        except probe.Stop: return"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as found:
        yield found


def check(host: ProbeHost, setup: SlotSetup, config: dict[str, Any], folder: Path) -> None:
    """Paused as often as can be, a trial has the same curve to the last bit, and nothing twice."""
    unbroken = play_on(host, setup, config)
    told, probes = paused_at_every_report(host, setup, config, folder)

    assert outcome(unbroken) == Outcome.OK, reason(unbroken)
    assert outcome(told) == Outcome.OK, reason(told)
    assert curve(told) == curve(unbroken)
    assert probes >= len(curve(unbroken))
    assert told[-1].warnings == unbroken[-1].warnings


@pytest.mark.parametrize("name", SAMPLES)
def test_a_built_in(name: str, folder: Path) -> None:
    one = manifest(name)
    axis = "tokens" if one.tokens_per_sample else "samples"
    fidelity = {"axis": axis, "max": SAMPLES[name] * (one.tokens_per_sample or 1), "reports": REPORTS}
    parameters = {**one.baseline, "batch_size": 16, **({} if name == "quadratic" else {"dropout": 0.2})}
    config = probe_config(parameters=parameters, fidelity=fidelity)
    with probe_host(name) as host:
        check(host, slot_setup(folder, workload=name), config, folder / "c")


def test_mixed_precision_with_its_loss_scale_and_a_relative_clip(folder: Path) -> None:
    own = {"optimizer": "sgd", "momentum": 0.9, "grad_clip": {"relative": 0.5}, "lr": 0.1}
    derived = {"loss_scale": "auto", "micro_batch": 8, "accumulation": 4}
    config = probe_config(parameters={**own, "batch_size": 32}, precision="fp16", derived=derived)
    with probe_host("tabular-mlp") as host:
        check(host, slot_setup(folder, workload="tabular-mlp"), config, folder / "c")


def test_a_class_that_draws_from_torch_python_and_numpy(folder: Path) -> None:
    setup = class_setup(folder, NOISY, NOISY_LOSS, PLAIN_EVALUATE)
    host = open_host(setup)
    try:
        check(host, setup, probe_config(lr=0.05, width=8), folder / "c")
    finally:
        host.close()


def test_a_class_in_two_processes(folder: Path) -> None:
    setup = class_setup(folder, NOISY, NOISY_LOSS, PLAIN_EVALUATE, **TWO)
    derived = {"micro_batch": 16, "accumulation": 2, "processes": 2}
    config = probe_config(lr=0.05, width=8, derived=derived, fidelity={"axis": "samples", "max": 640, "reports": 3})
    host = open_host(setup)
    try:
        check(host, setup, config, folder / "c")
    finally:
        host.close()


@pytest.mark.parametrize("text", [SCRIPT, SWALLOWED], ids=["raised", "swallowed"])
def test_a_function_that_has_called_checkpoint(folder: Path, text: str) -> None:
    setup = function(folder, text)
    host = open_host(setup)
    try:
        check(host, setup, probe_config(), folder / "c")
    finally:
        host.close()


def test_a_command_that_has_called_checkpoint(folder: Path) -> None:
    setup = command(folder, SCRIPT, environment={"PYTHONPATH": str(Path(__file__).parents[2])})
    host = open_host(setup)
    try:
        check(host, setup, probe_config(fidelity={"axis": "samples", "max": 640, "reports": 2}), folder / "c")
    finally:
        host.close()


def test_a_script_that_does_not_load_its_checkpoint_is_ended_and_told_what_to_do(folder: Path) -> None:
    setup = function(folder, SCRIPT.replace("file: state.update(json.load(file))", "file: return"))
    host = open_host(setup)
    try:
        told, _ = paused_at_every_report(host, setup, probe_config(), folder / "c")
    finally:
        host.close()

    assert outcome(told) == Outcome.CRASHED
    assert "was to go on from step 2 and reported step 1: it has not loaded its checkpoint" in reason(told)


@pytest.mark.parametrize(
    ("save", "ended_as", "said"),
    [
        ("fails", Outcome.CRASHED, "OSError: No space left on device"),
        ("hangs", Outcome.TIMED_OUT, "its checkpoint was not saved within limits.silence_seconds = 1"),
        ("dies", Outcome.OUT_OF_MEMORY, "killed (SIGKILL), most likely by the kernel for want of memory"),
    ],
)
def test_a_save_that_does_not_work_ends_the_probe_with_its_reason(
    folder: Path, save: str, ended_as: Outcome, said: str
) -> None:
    with probe_host() as host:
        config = probe_config(save=save, checkpoint_dir=str(folder / "c"))
        told = play_on(host, slot_setup(folder, silence_seconds=1.0), config, pauses=True)

    assert (outcome(told), reason(told)) == (ended_as, said)
    assert told[-1].mark is None
    assert len(curve(told)) == 1
    assert not (folder / "c" / "state.json").exists()


def test_a_checkpoint_that_cannot_be_read_ends_the_probe_before_it_reports(folder: Path) -> None:
    (folder / "c" / "1").mkdir(parents=True)
    (folder / "c" / "1" / "state.pt").write_bytes(b"PK torn")
    with probe_host("tabular-mlp") as host:
        config = probe_config(resume_dir=str(folder / "c" / "1"))
        told = play_on(host, slot_setup(folder, workload="tabular-mlp"), config)

    assert outcome(told) == Outcome.CRASHED
    assert "CheckpointError: the checkpoint" in reason(told)
    assert curve(told) == []
