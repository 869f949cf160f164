"""`x5tune diagnose`: a workload, a file, or a job that has run."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import COMMAND, Cli, finished_job
from tests.cli.test_jobs import cli
from tests.service.support import Service
from tests.tuner.support import eventually, processes_in, short_folder
from tuner.diagnosing import diagnose_job
from tuner.spec import resolve

__all__ = ["cli"]

SOURCE = """
import torch
from torch import nn

class Rows:
    def model(self, config):
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))

    def train_data(self):
        made = torch.Generator().manual_seed(0)
        inputs = torch.randn(240, 6, generator=made)
        return (inputs, (inputs.sum(1) > 0).long())

    def eval_data(self):
        return self.train_data()

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model, data):
        return {"accuracy": float((model(data[0]).argmax(1) == data[1]).float().mean())}

class Deaf(Rows):
    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch[0] * 0), batch[1])
"""


def test_a_class_is_diagnosed_by_its_name_and_a_file_by_its_baseline(tmp_path: Path) -> None:
    here = Cli(tmp_path, {})
    (tmp_path / "mine.py").write_text(SOURCE)
    (tmp_path / "job.yaml").write_text(
        "workload: {python: mine.py:Rows}\nobjective: {metric: accuracy, direction: maximize}\n"
        "fidelity: {axis: steps, max: 200}\nsearch: {batch_size: 32}\nbaseline: {lr: 1e-8}\n"
    )

    healthy = here("diagnose", "mine.py:Rows", "--seconds", "20", COLUMNS="200")
    deaf = here("diagnose", "mine.py:Deaf", "--json", "--seconds", "20")
    slow = here("diagnose", "job.yaml", "--json", "--seconds", "20")

    assert (healthy.code, healthy.out.splitlines()[-1]) == (0, "mine.py:Rows is healthy."), healthy.err
    assert (deaf.code, deaf.json["verdict"]) == (1, "data_ignored")
    assert {"code", "level", "message", "evidence", "action"} == set(deaf.json["checks"][0])
    assert (slow.code, slow.json["verdict"]) == (1, "learning_rate_too_low")


def test_what_cannot_be_diagnosed_is_said(tmp_path: Path) -> None:
    here = Cli(tmp_path, {})
    (tmp_path / "mine.py").write_text("import nowhere\n" + SOURCE)

    assert here("diagnose", "quadratic").code == 2
    assert "cannot be imported: ModuleNotFoundError" in here("diagnose", "mine.py:Rows", COLUMNS="200").out
    assert here("diagnose", "digits-cnn", "--set", "baseline.lr=-1").code == 2


def test_of_a_job_that_has_run_its_trials_are_judged_too(cli: Cli, service: Service) -> None:
    job_id = finished_job(service.database)
    told = cli("diagnose", job_id, "--json").json
    assert [(each["level"], each["code"]) for each in told["checks"]] == [("skipped", "inside")]


STUCK = """
    def loss(self, model, batch):
        import pathlib, time
        pathlib.Path(__file__).with_name("begun").touch()
        time.sleep(3600)
"""


def test_a_name_that_is_nothing_is_told_with_all_that_it_could_be(cli: Cli) -> None:
    said = cli("diagnose", "digit-cnn", COLUMNS="300").err
    assert "No job's id begins with 'digit-cnn'" in said
    assert "is no file and no built-in workload (digits-cnn, " in said


def test_a_diagnosis_that_is_told_to_end_leaves_nothing() -> None:
    with short_folder() as folder:
        (folder / "mine.py").write_text(SOURCE + "\nclass Stuck(Rows):" + STUCK)
        variables = {**Cli(folder, {}).environment(), "TMPDIR": str(folder)}
        with subprocess.Popen([*COMMAND, "diagnose", "mine.py:Stuck"], cwd=folder, env=variables) as process:
            assert eventually((folder / "begun").exists, 60.0)
            assert len(list(folder.glob("x5d-*"))) == 1
            process.terminate()
            assert process.wait(20) == 128 + signal.SIGTERM
        assert list(folder.glob("x5d-*")) == []
        assert eventually(lambda: processes_in(folder) == [], 10.0)


def test_a_diagnosis_that_hangs_ends_soon_after_its_seconds_with_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.diagnosing.LEAST_GRACE_S", 1.0)
    (tmp_path / "mine.py").write_text(SOURCE + "\nclass Stuck(Rows):" + STUCK)
    spec = {
        "workload": {"python": "mine.py:Stuck", "folder": str(tmp_path)},
        "objective": {"metric": "accuracy", "direction": "maximize"},
        "fidelity": {"axis": "steps", "max": 200},
        "search": {"batch_size": 32},
    }
    verdicts = diagnose_job(resolve(spec).job, 1.0)
    assert [verdict["code"] for verdict in verdicts][-1] == "too_slow"
    assert "in 2 s" in verdicts[-1]["message"]
    assert len(verdicts) > 1
