"""A class of the user's under the loop: what each method may give, and how the rest is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tests.workloads.support import RecordingProbe, config_for, probe_for
from workloads.user_class import UserClass

ROWS = (torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)
Method = Callable[..., Any]


class Rows:
    """The least that the loop trains."""

    def model(self, config: Any) -> Any:
        return nn.Linear(6, int(config.get("width", 2)))

    def train_data(self) -> Any:
        return ROWS

    def eval_data(self) -> Any:
        return ROWS

    def loss(self, model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: Any, data: Any) -> Any:
        return self.loss(model, data)


def run(**methods: Method) -> RecordingProbe:
    """A run of `Rows` with these methods in the place of its own."""
    config = config_for()
    probe = probe_for(config)
    UserClass(type("Rows", (Rows,), methods)(), "val_loss").run(config, probe)
    return probe


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if index >= 60:
            raise IndexError(index)
        return {"x": ROWS[0][index], "y": ROWS[1][index]}


class Liar:
    """A dataset that says `length` of itself."""

    def __init__(self, length: Any) -> None:
        self._length = length

    def __len__(self) -> int:
        found: int = self._length
        return found

    def __getitem__(self, index: int) -> Any:
        return ROWS[0][index], ROWS[1][index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from zip(*ROWS, strict=True)


def test_one_number_is_the_objective() -> None:
    config = config_for()
    probe = probe_for(config)

    UserClass(Rows(), "my/loss").run(config, probe)

    assert len(probe.values("my/loss")) == 5


def test_several_metrics_have_their_names_and_may_be_tensors() -> None:
    probe = run(evaluate=lambda self, model, data: {"val_loss": self.loss(model, data), "acc": 0.5, 3: True + 0.0})

    assert probe.reports[0][1]["acc"] == 0.5
    assert isinstance(probe.reports[0][1]["val_loss"], float)


def test_a_metric_called_as_one_of_the_loops_own_is_the_users() -> None:
    probe = run(evaluate=lambda self, model, data: {"val_loss": 0.5, "train_loss": 7.0, "lr": 0.25})

    assert set(probe.values("train_loss")) == {7.0}
    assert set(probe.values("lr")) == {0.25}


@pytest.mark.parametrize(
    ("has_test_data", "split", "seen"), [(True, "test", 7), (True, "validation", 60), (False, "test", 60)]
)
def test_confirmation_evaluates_on_the_test_data_where_there_are_some(
    has_test_data: bool, split: Any, seen: int
) -> None:
    methods: dict[str, Any] = {"evaluate": lambda self, model, data: len(data[0])}
    if has_test_data:
        methods["test_data"] = lambda self: tuple(part[:7] for part in ROWS)
    config = config_for(split=split)
    probe = probe_for(config)

    UserClass(type("Rows", (Rows,), methods)(), "val_loss").run(config, probe)

    assert set(probe.values("val_loss")) == {seen}


@pytest.mark.parametrize("data", [ROWS, TensorDataset(*ROWS), list(zip(*ROWS, strict=True))])
def test_a_batch_is_a_tuple_of_columns_whatever_the_data_are(data: Any) -> None:
    probe = run(train_data=lambda self: data)

    assert probe.values("train_loss") == pytest.approx(run().values("train_loss"))


def test_one_tensor_is_batched_as_it_is() -> None:
    shapes: list[Any] = []

    def loss(self: Rows, model: Any, batch: torch.Tensor) -> Any:
        shapes.append(batch.shape)
        return model(batch).mean()

    run(train_data=lambda self: ROWS[0], loss=loss, evaluate=lambda self, model, data: 1.0)

    assert set(shapes) == {(16, 6), (4, 6)}


def test_a_dataset_of_mappings_is_collated_as_a_dataloader_does() -> None:
    def loss(self: Rows, model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    run(train_data=lambda self: Squares(), loss=loss, evaluate=lambda self, model, data: 1.0)


def test_a_collate_of_its_own_makes_the_batches() -> None:
    sizes: list[int] = []

    def collate(self: Rows, samples: list[Any]) -> Any:
        sizes.append(len(samples))
        return tuple(torch.stack(column) for column in zip(*samples, strict=True))

    run(train_data=lambda self: TensorDataset(*ROWS), collate=collate)

    assert set(sizes) == {16, 4}  # a quarter now and then, for the gradient noise


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "returned NoneType; return a tuple of tensors of equal length, one tensor, or a dataset"),
        (iter(ROWS), "returned tuple_iterator"),
        ({"x": ROWS[0]}, "returned dict"),
        ((), "returned a tuple with nothing in it"),
        ((ROWS[0].numpy(),), "returned a tuple with ndarray in it"),
        ([*ROWS], "returned a list of tensors; return a tuple"),
        ((ROWS[0], ROWS[1][:3]), "returned tensors of different lengths: 60, 3"),
        (ROWS[0][:0], "returned no samples"),
        ([], "returned no samples"),
        ((torch.zeros(0, 2), torch.zeros(0)), "returned no samples"),
        (DataLoader(Squares()), "returned a DataLoader; return its dataset"),
        (Stream(), "returned an IterableDataset"),
        (Liar(-3), r"returned Liar, whose len\(\) cannot be used \(__len__\(\) should return >= 0\)"),
        (Liar("60"), r"returned Liar, whose len\(\) cannot be used \('str' object"),
    ],
)
def test_data_that_the_loop_cannot_take_batches_from_are_refused(data: Any, said: str) -> None:
    with pytest.raises(TypeError, match=f"Rows.train_data {said}"):
        run(train_data=lambda self: data)


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("model", lambda self, config: 3, "Rows.model has to return a torch.nn.Module, and it returned int"),
        ("model", lambda self, config: config["widht"], "^'widht' is no parameter of this trial; there are: batch"),
        ("loss", lambda self, model, batch: 0.5, "Rows.loss has to return a tensor, .* it returned float"),
        ("loss", lambda self, model, batch: model(batch[0]), r"the mean over the batch; its shape is \(16, 2\)"),
        ("loss", lambda self, model, batch: torch.zeros(()), "does not depend on the model's parameters"),
        ("evaluate", lambda self, model, data: None, "for 'val_loss' it is NoneType None"),
        ("evaluate", lambda self, model, data: {"val_loss": "low"}, "for 'val_loss' it is str 'low'"),
        ("evaluate", lambda self, model, data: {"val_loss": True}, "for 'val_loss' it is bool True"),
        ("evaluate", lambda self, model, data: model(data[0]), "for 'val_loss' it is Tensor"),
        ("evaluate", lambda self, model, data: {"val_loss": 1.0, "step": 3}, "step says how far the run is"),
    ],
)
def test_what_a_method_gives_wrong_is_named(method: str, given: Method, said: str) -> None:
    with pytest.raises((TypeError, ValueError, KeyError), match=said):
        run(**{method: given})
