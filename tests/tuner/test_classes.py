"""A class of the user's in a slot: x5tune owns the loop, and says which method gave what it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tuner.classes import CLASS, IMPORTS, class_setup
from tests.tuner.support import probe_config, slot_setup
from tests.tuner.test_user_code import folder, outcome, play, reason, values
from tuner.jobspec import UserCode
from tuner.records import Outcome

__all__ = ["folder"]

CONFIG = probe_config(lr=0.05, width=8)


def test_a_class_is_trained_and_reports_at_due_steps(folder: Path) -> None:
    reports = play(class_setup(folder), CONFIG)

    assert outcome(reports) == Outcome.OK
    assert [index for index, _ in values(reports)] == [1, 2, 3, 4, 5]
    first, last = values(reports)[0][1], values(reports)[-1][1]
    assert first is not None
    assert last is not None
    assert last < first
    assert {"val_accuracy", "train_loss", "grad_norm", "lr"} <= set(reports[-1].health)


def test_a_class_uses_the_threads_of_its_trial(folder: Path) -> None:
    setup = class_setup(folder, "evaluate(self, model, data): return torch.get_num_threads()", cpus=2.0)

    assert values(play(setup, CONFIG))[-1] == (5, 2.0)


@pytest.mark.parametrize("name", ["workloads", "tuner", "service"])
def test_the_packages_of_a_class_may_be_called_as_ours(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text("mine = 41")
    (folder / name / "later.py").write_text("mine = 42")
    later = f"evaluate(self, model, data): from {name}.later import mine; return mine"

    reports = play(class_setup(folder, later, before=f"import {name}\nassert {name}.mine == 41\n"), CONFIG)

    assert (outcome(reports), values(reports)[-1]) == (Outcome.OK, (5, 42.0))


def test_a_class_that_starts_a_thread_on_import_gets_fresh_processes_with_equal_results(folder: Path) -> None:
    forked = values(play(class_setup(folder), CONFIG))
    thread = "import threading\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n"

    assert values(play(class_setup(folder, before=thread), CONFIG)) == forked


def test_what_a_method_gives_wrong_is_the_reason_and_its_traceback_is_in_the_log(folder: Path) -> None:
    reports = play(class_setup(folder, "loss(self, model, batch): return 0.5"), CONFIG)

    assert outcome(reports) == Outcome.CRASHED
    assert "Rows.loss has to return a tensor" in reason(reports)
    assert "Traceback" in reports[-1].log_tail


def test_a_metric_that_evaluate_does_not_give_is_no_metric(folder: Path) -> None:
    reports = play(class_setup(folder, "evaluate(self, model, data): return {'error': 1.0}"), CONFIG)

    assert outcome(reports) == Outcome.NO_METRIC
    assert "error" in reason(reports).partition("it reported: ")[2].split(", ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Rows: model = loss = print", "is a class without train_data, eval_data, evaluate"),
        (CLASS + "    def __init__(self): raise FileNotFoundError('rows.npz')", "FileNotFoundError: rows.npz"),
        (CLASS + "    def __init__(self, path): ...", "missing 1 required positional argument: 'path'"),
    ],
)
def test_a_class_that_cannot_be_constructed_ends_the_job_at_once(folder: Path, text: str, said: str) -> None:
    (folder / "train.py").write_text(IMPORTS + text)

    reports = play(slot_setup(folder, code=UserCode(str(folder), target="train.py:Rows")), CONFIG)

    assert reports[-1].end is not None
    assert reports[-1].end.is_fatal
    assert said in reason(reports)
