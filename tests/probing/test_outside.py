"""Outside x5tune the calls of a training script do nothing, except that wrong values are wrong there too."""

from __future__ import annotations

import ast
import math
import pickle
import timeit
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pytest

import x5tune
from tests.probing.server import run_script
from x5tune import probing


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("X5TUNE_CONFIG", "X5TUNE_CONTROL", "X5TUNE_REPORT", "RANK"):
        monkeypatch.delenv(name, raising=False)


def message(**named: Any) -> dict[str, Any]:
    return probing._message(named.pop("step", 1), named.pop("metrics", None), named)


def test_there_is_nothing_to_configure() -> None:
    assert x5tune.config() == {
        "parameters": {},
        "derived": {},
        "seed": 0,
        "fidelity": None,
        "device": "cpu",
        "precision": "fp32",
        "trial": None,
        "job_id": None,
    }


def test_what_a_script_does_to_its_configuration_stays_with_it() -> None:
    x5tune.config()["parameters"]["lr"] = 1

    assert x5tune.config()["parameters"] == {}


def test_reports_and_checkpoints_do_nothing() -> None:
    def fail(path: str) -> None:
        raise AssertionError(path)

    x5tune.report(step=1, val_loss=0.5, samples=64)
    x5tune.report(step=1, metrics={"val/acc@5": math.nan})
    assert x5tune.checkpoint(save=fail, load=fail) is False


def test_a_report_costs_nothing_noticeable() -> None:
    def once() -> None:
        x5tune.report(step=1, val_loss=0.5)

    assert min(timeit.repeat(once, number=100, repeat=20)) / 100 < 200e-6


@pytest.mark.parametrize("value", ["0.3", b"0.3", None, True, [0.3], 1j, numpy.zeros(3), object()])
def test_what_is_no_number_is_refused_by_the_metrics_name(value: Any) -> None:
    with pytest.raises(TypeError, match="'val_loss' must be a number"):
        x5tune.report(step=1, val_loss=value)
    with pytest.raises(TypeError, match="'val/acc@5' must be a number"):
        x5tune.report(step=1, metrics={"val/acc@5": value})


@pytest.mark.parametrize("value", [0.5, Decimal("0.5"), Fraction(1, 2), numpy.float32(0.5), numpy.array(0.5)])
def test_scalars_of_all_kinds_are_numbers(value: Any) -> None:
    assert message(val_loss=value)["metrics"] == {"val_loss": 0.5}


def test_a_zero_dimensional_tensor_is_a_number() -> None:
    torch = pytest.importorskip("torch")

    assert message(step=torch.tensor(3), val_loss=torch.tensor(0.5)) == {"step": 3, "metrics": {"val_loss": 0.5}}


def test_numbers_beyond_a_float_are_infinite() -> None:
    assert message(a=10**400, b=-(10**400))["metrics"] == {"a": math.inf, "b": -math.inf}


def test_progress_is_taken_out_of_the_metrics_and_must_be_finite() -> None:
    assert message(step=2, a=1, samples=128, tokens=9, seconds=1.5) == {
        "step": 2, "metrics": {"a": 1.0}, "samples": 128.0, "tokens": 9.0, "seconds": 1.5
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"'samples' .* must be finite"):
        x5tune.report(step=1, samples=math.nan)


def test_metrics_by_mapping_and_by_name_go_together() -> None:
    assert message(metrics={"val/acc@5": 0.3, "a": 1}, b=2)["metrics"] == {"val/acc@5": 0.3, "a": 1.0, "b": 2.0}


@pytest.mark.parametrize("step", [3, 3.0, numpy.int64(3), numpy.float64(3)])
def test_a_step_is_a_whole_number_of_any_type(step: Any) -> None:
    assert message(step=step)["step"] == 3


@pytest.mark.parametrize(("step", "error"), [(2.5, ValueError), ("3", TypeError), (None, TypeError), (True, TypeError)])
def test_any_other_step_is_refused(step: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="step"):
        x5tune.report(step=step, val_loss=1)


@pytest.mark.parametrize("metrics", [0.3, [("a", 1)], {1: 2}])
def test_metrics_must_be_a_mapping_of_names(metrics: Any) -> None:
    with pytest.raises(TypeError, match=r"metrics must be|name of a metric"):
        x5tune.report(step=1, metrics=metrics)


def test_stop_is_an_exit_with_status_0_that_exception_does_not_catch() -> None:
    done = run_script(
        "import x5tune\n"
        "try:\n    raise x5tune.Stop('pruned at report 3')\n"
        "except Exception:\n    print('swallowed')\n"
        "finally:\n    print('cleaned up')"
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "cleaned up\n", "")


def test_stop_says_why_also_after_pickling() -> None:
    stop = pickle.loads(pickle.dumps(x5tune.Stop("pruned")))

    assert (stop.reason, str(stop), stop.code) == ("pruned", "pruned", 0)


def test_a_script_needs_the_standard_library_only() -> None:
    done = run_script(
        "import sys\nbefore = set(sys.modules)\nimport x5tune\n"
        "x5tune.report(step=1, val_loss=1); x5tune.config(); x5tune.checkpoint(save=print, load=print)\n"
        "ours = [n for n in set(sys.modules) - before if n.partition('.')[0] not in sys.stdlib_module_names]\n"
        "print(sorted(n for n in ours if not n.startswith('_')))"
    )

    assert done.stdout.strip() == "['x5tune', 'x5tune.probing']", done.stderr


@pytest.mark.parametrize("name", ["__init__.py", "probing.py"])
def test_the_syntax_is_that_of_python_3_9(name: str) -> None:
    text = Path(probing.__file__).with_name(name).read_text()

    ast.parse(text, feature_version=(3, 9))
    assert "from __future__ import annotations" in text
