"""Ten and more broken models get the verdict that names what is wrong; ten and more healthy ones get none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.workloads.broken_models import BROKEN, InfiniteEvaluation, OtherMetric, Plain
from tests.workloads.healthy_models import HEALTHY
from tests.workloads.more_models import MORE_BROKEN, MORE_HEALTHY, BatchForTime, Rows
from workloads.catalog import manifest
from workloads.checks_data import samples_are_apart
from workloads.contract import Fidelity, ProbeConfig
from workloads.diagnosis import diagnose
from workloads.open import open_workload
from workloads.subject import Subject
from workloads.trainable import Trainable
from workloads.user_class import UserClass

Verdicts = list[dict[str, Any]]

ALL_BROKEN, ALL_HEALTHY = (*BROKEN, *MORE_BROKEN), (*HEALTHY, *MORE_HEALTHY)

pytestmark = pytest.mark.filterwarnings("default")  # torch's own about what is wrong


def verdicts(
    workload: Trainable,
    parameters: Mapping[str, Any],
    fidelity: Fidelity | None = None,
    metric: str | None = "val_loss",
) -> Verdicts:
    given = dict(parameters)
    config = ProbeConfig(
        parameters=given,
        derived={},
        seed=1,
        fidelity=fidelity or Fidelity("steps", 400, 20),
        device="cpu",
        precision=given.pop("precision", "fp32"),
        trial=-1,
        job_id="diagnosis",
        fit={"diagnose": {"metric": metric, "direction": "minimize", "seconds": 15}},
    )
    found = diagnose(workload, config)
    json.dumps(found, allow_nan=False)
    return found


def wrong(found: Verdicts) -> list[str]:
    return [verdict["code"] for verdict in found if verdict["level"] in ("problem", "warning")]


def subject(kind: type[Plain]) -> Subject:
    config = ProbeConfig(
        {"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01}, {}, 1, Fidelity("steps", 400, 20), "cpu", "fp32", -1, "d"
    )
    return Subject(UserClass(kind(), "val_loss"), config, "val_loss", "minimize", 15)


def of(kind: type[Plain], changes: Mapping[str, Any]) -> Verdicts:
    base = {"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01}
    return verdicts(UserClass(kind(), "val_loss"), {**base, **changes})


@pytest.mark.parametrize(("kind", "code", "changes"), ALL_BROKEN, ids=[f"{k.__name__}-{c}" for k, c, _ in ALL_BROKEN])
def test_what_is_wrong_is_the_first_verdict(kind: type[Plain], code: str, changes: Mapping[str, Any]) -> None:
    found = of(kind, changes)
    assert wrong(found)[:1] == [code]
    named = next(verdict for verdict in found if verdict["code"] == code)
    assert named["action"]
    assert named["message"].endswith((".", "?"))


@pytest.mark.parametrize(
    ("kind", "changes"), ALL_HEALTHY, ids=[f"{k.__name__}-{'-'.join(map(str, c.values()))}" for k, c in ALL_HEALTHY]
)
def test_nothing_is_wrong_with_what_is_healthy(kind: type[Plain], changes: Mapping[str, Any]) -> None:
    assert wrong(of(kind, changes)) == []


@pytest.mark.parametrize("name", ["digits-cnn", "tabular-mlp", "digits-two-losses"])
def test_nothing_is_wrong_with_the_built_ins(name: str) -> None:
    fidelity = Fidelity(**{"reports": 20, **manifest(name).fidelity})  # type: ignore[arg-type]
    workload: Any = open_workload(name)
    assert wrong(verdicts(workload, manifest(name).baseline, fidelity)) == []


def test_a_model_that_takes_the_batch_for_the_time_mixes_samples_and_one_that_does_not_does_not() -> None:
    class InOrder(Plain):
        def model(self, config: Mapping[str, Any], /) -> Any:
            return Rows()

    found = {kind.__name__: samples_are_apart(subject(kind)) for kind in (BatchForTime, InOrder)}

    assert (found["BatchForTime"].level, found["BatchForTime"].code) == ("warning", "samples_mixed")
    assert found["InOrder"].level == "ok"


class Crashing(Plain):
    def train_data(self) -> Any:
        raise FileNotFoundError("rows.npz")


def test_an_error_while_it_is_looked_at_is_told_as_it_is() -> None:
    class Breaks(Plain):
        def evaluate(self, model: Any, data: Any, /) -> Mapping[str, float]:
            raise KeyError("accuracy")

    found = of(Breaks, {})
    assert wrong(found) == ["crashes"]
    with pytest.raises(FileNotFoundError):
        of(Crashing, {})


def test_a_rate_that_is_to_be_lowered_is_never_named_higher_than_it_is() -> None:
    low = next(each for each in of(InfiniteEvaluation, {"lr": 1e-3}) if each["code"] == "diverges")
    named = re.search(r"Lower the learning rate to about ([\d.e-]+),", low["action"])
    assert named is not None
    assert float(named[1]) < 1e-3


def test_where_nobody_has_named_a_metric_any_will_do() -> None:
    workload = UserClass(OtherMetric(), "evaluated")
    parameters = {"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01}
    assert wrong(verdicts(workload, parameters, metric=None)) == []
