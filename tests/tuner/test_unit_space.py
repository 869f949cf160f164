"""A job's space as points of the unit cube: every configuration there and back, and none twice in a finite space."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from tuner.freeze_thaw import FreezeThaw
from tuner.jobspec import Choices, Condition, Fixed, Parameter, Range
from tuner.spec_space import contains, space_size
from tuner.unit_space import UnitSpace

MIXED: dict[str, Parameter] = {
    "eps": Fixed(1e-8),
    "lr": Range(1e-4, 1.0, log=True),
    "dropout": Range(0.0, 0.5),
    "weight_decay": Range(1e-5, 0.3, log=True, or_zero=True),
    "layers": Range(1, 6, integer=True),
    "width": Range(64, 4096, log=True, integer=True),
    "batch_size": Choices((64, 16, 32, 128)),
    "optimizer": Choices(("adamw", "sgd", "lamb")),
    "nesterov": Choices((True, False), when=Condition("optimizer", ("sgd",))),
    "shape": Choices(([1, 2], None, "wide", True)),
    "tail": Range(0.1, 1.0, when=Condition("layers", (5, 6))),
}


def drawn(space: UnitSpace, count: int, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    points = space.random(rng, count)
    return [space.take(point) for point in points]


def test_every_value_that_is_drawn_lies_in_its_range_and_exists_only_where_its_condition_is_met() -> None:
    for parameters in drawn(UnitSpace(MIXED), 300):
        assert all(contains(MIXED[name], value) for name, value in parameters.items()), parameters
        assert ("nesterov" in parameters) == (parameters["optimizer"] == "sgd")
        assert ("tail" in parameters) == (parameters["layers"] >= 5)
        assert parameters["eps"] == 1e-8
        assert list(parameters) == [name for name in MIXED if name in parameters]
        json.dumps(parameters)


def test_a_configuration_and_its_point_lead_to_one_another() -> None:
    space = UnitSpace(MIXED)
    rng = np.random.default_rng(1)
    for point in np.concatenate((space.random(rng, 200), space.near(rng, space.random(rng, 1)[0], 100))):
        parameters = space.parameters(point)
        assert np.allclose(space.point(parameters), point), parameters
        again = space.parameters(space.point(parameters))
        assert again.keys() == parameters.keys()
        for name, value in parameters.items():
            if isinstance(value, float):
                assert again[name] == pytest.approx(value, rel=1e-9)
            else:
                assert again[name] == value


def test_draws_are_spread_over_the_scale_of_each_parameter() -> None:
    found = drawn(UnitSpace(MIXED), 4000)
    assert 0.45 < np.mean([one["lr"] < 1e-2 for one in found]) < 0.55
    assert 0.08 < np.mean([one["weight_decay"] == 0 for one in found]) < 0.12
    assert 0.13 < np.mean([one["layers"] == 1 for one in found]) < 0.2
    assert 0.45 < np.mean([one["width"] < 512 for one in found]) < 0.55
    assert 0.21 < np.mean([one["batch_size"] == 16 for one in found]) < 0.29


def test_numeric_choices_lie_in_the_order_of_their_values_and_others_apart() -> None:
    space = UnitSpace({"batch": Choices((64, 16, 32)), "kind": Choices(("a", "b", "c"))})
    batches = [space.point({"batch": batch, "kind": "a"})[0] for batch in (16, 32, 64)]
    assert batches == sorted(batches)
    kinds = [space.point({"batch": 16, "kind": kind})[1:] for kind in "abc"]
    distances = {round(float(np.linalg.norm(kinds[i] - kinds[j])), 6) for i in range(3) for j in range(i)}
    assert len(distances) == 1


def test_a_neighbour_is_near_and_most_parameters_of_it_are_the_same() -> None:
    space = UnitSpace({"lr": Range(1e-4, 1.0, log=True), "wd": Range(1e-4, 1.0, log=True)})
    point = space.point({"lr": 1e-2, "wd": 1e-3})
    near = space.near(np.random.default_rng(2), point, 300)
    assert np.abs(near - point).mean() < 0.1
    assert 0.3 < np.mean(near[:, 0] == point[0]) < 0.7
    assert ((near >= 0) & (near <= 1)).all()


def test_what_was_tried_is_not_tried_again_in_a_continuous_space_either() -> None:
    space = UnitSpace({"lr": Range(1e-4, 1.0, log=True), "batch": Choices((16, 32))})
    rng = np.random.default_rng(8)
    point = space.random(rng, 1)[0]
    assert any(np.array_equal(near, point) for near in space.near(rng, point, 50)), "until it is tried"
    space.take(point)
    assert not any(np.array_equal(near, point) for near in space.near(rng, point, 50))
    other = space.random(rng, 1)[0]
    space.place(space.parameters(other))
    assert not any(np.allclose(near, other) for near in space.near(rng, other, 50))


@pytest.mark.parametrize("whole", [Range(1, 5, integer=True), Range(1, 5000, integer=True)])
def test_a_finite_space_is_searched_without_a_repeat(whole: Range) -> None:
    parameters: dict[str, Parameter] = {"n": whole, "k": Choices(("a", "b", "c"))}
    space = UnitSpace(parameters)
    rng = np.random.default_rng(3)
    size = space_size(parameters) or 0
    seen = set()
    for _ in range(min(size, 200)):
        points = space.random(rng, 30)
        points = np.concatenate((points, space.near(rng, points[0], 5)))
        seen.add(json.dumps(space.take(points[-1])))
    assert len(seen) == min(size, 200)
    if size < 200:
        assert len(space.random(rng, 30)) == 0


def test_a_conditional_finite_space_ends_after_every_configuration() -> None:
    parameters: dict[str, Parameter] = {
        "kind": Choices(("a", "b")),
        "n": Range(1, 3, integer=True, when=Condition("kind", ("a",))),
    }
    search = FreezeThaw(UnitSpace(parameters), 4, rungs=(1.0,))
    found = []
    while (step := search.propose()) is not None:
        found.append(step.key)
        search.observe(step.trial, float(len(found)))
    assert sorted(map(json.dumps, found)) == sorted(
        map(json.dumps, [{"kind": "a", "n": 1}, {"kind": "a", "n": 2}, {"kind": "a", "n": 3}, {"kind": "b"}])
    )


def test_a_space_in_which_all_is_fixed_has_one_configuration() -> None:
    search = FreezeThaw(UnitSpace({"lr": Fixed(0.1)}), 5)
    step = search.propose()
    assert step is not None
    assert step.key == {"lr": 0.1}
    assert search.propose() is None


def test_the_baseline_has_a_place_even_outside_its_range_and_is_not_proposed_again() -> None:
    space = UnitSpace({"lr": Range(1e-3, 1e-1, log=True), "n": Fixed(2)})
    assert space.place({"lr": 1e-2, "n": 3})[0] == pytest.approx(0.5)
    assert space.place({"lr": 1e-3 / 2, "n": 2})[0] < 0
    assert space.place({"lr": 1e-30, "n": 2})[0] == -0.5
    finite = UnitSpace({"n": Choices((1, 2, 3))})
    finite.place({"n": 2})
    assert sorted(one["n"] for one in drawn(finite, 10)) == [1, 3]


def test_the_search_finds_the_bottom_of_a_bowl_over_real_parameters() -> None:
    space = UnitSpace({name: MIXED[name] for name in ("lr", "weight_decay", "optimizer", "batch_size")})

    def loss(parameters: dict[str, Any]) -> float:
        apart = math.log10(parameters["lr"] / 3e-3) ** 2 + abs(math.log2(parameters["batch_size"] / 32)) / 4
        return float(apart + (parameters["optimizer"] != "lamb") + parameters["weight_decay"])

    search = FreezeThaw(space, 6, rungs=(1.0,))
    for _ in range(60):
        step = search.propose()
        assert step is not None
        search.observe(step.trial, loss(step.key))
    best = search.recommend()
    assert best is not None
    assert loss(search.trials[best].key) < 0.15
