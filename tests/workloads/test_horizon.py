"""The arithmetic of the fidelity axis."""

from __future__ import annotations

import pytest

from workloads.contract import Fidelity
from workloads.horizon import Horizon
from workloads.manifest import Axis


class Clock:
    """Time that only moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def horizon(axis: Axis, maximum: float, reports: int, batch_size: int = 1, tokens: int | None = None) -> Horizon:
    return Horizon.of(Fidelity(axis, maximum, reports), batch_size, tokens)


def due_steps(plan: Horizon) -> list[int]:
    return [step for step in range(1, plan.steps + 1) if plan.due(step)]


def test_a_report_is_due_when_the_index_grows() -> None:
    assert due_steps(horizon("samples", 1000, 4, batch_size=50)) == [5, 10, 15, 20]


def test_the_last_step_covers_the_horizon_and_is_due() -> None:
    plan = horizon("samples", 1000, 4, batch_size=64)
    assert plan.steps == 16
    assert due_steps(plan) == [4, 8, 12, 16]
    assert plan.fidelity.index(plan.position(16)) == 4


def test_a_batch_larger_than_the_horizon_is_one_step() -> None:
    assert due_steps(horizon("samples", 100, 20, batch_size=256)) == [1]


def test_fewer_steps_than_reports_make_every_step_due() -> None:
    assert due_steps(horizon("samples", 100, 20, batch_size=30)) == [1, 2, 3, 4]


def test_steps_ignore_the_batch_size() -> None:
    plan = horizon("steps", 10, 5, batch_size=64)
    assert due_steps(plan) == [2, 4, 6, 8, 10]
    assert plan.position(3) == 3


def test_tokens_count_samples_times_their_length() -> None:
    plan = horizon("tokens", 1024, 2, batch_size=4, tokens=64)
    assert plan.steps == 4
    assert plan.position(1) == 256


def test_tokens_without_a_length_are_an_error() -> None:
    with pytest.raises(ValueError, match="tokens axis"):
        horizon("tokens", 1024, 2)


def test_an_exact_division_in_floating_point_takes_no_extra_step() -> None:
    assert horizon("steps", 0.3 / 0.1, 3).steps == 3


@pytest.mark.parametrize("batch_size", [1, 3, 16, 100, 101])
def test_due_indices_ascend_to_the_number_of_reports(batch_size: int) -> None:
    plan = horizon("samples", 1000, 20, batch_size=batch_size)
    indices = [plan.fidelity.index(plan.position(step)) for step in due_steps(plan)]
    assert indices == sorted(set(indices))
    assert indices[-1] == 20


def test_on_the_seconds_axis_the_clock_decides() -> None:
    clock = Clock()
    plan = Horizon.of(Fidelity("seconds", 10, 5), 16, None, clock)
    seen = []
    step = 0
    while not plan.is_over(step):
        step += 1
        clock.now += 0.75
        if plan.due(step):
            seen.append((step, plan.position(step)))
    assert seen == [(3, 2.25), (6, 4.5), (8, 6.0), (11, 8.25), (14, 10.5)]
    assert plan.steps > 10**9


def test_on_the_seconds_axis_asking_twice_gives_the_same_answer() -> None:
    clock = Clock()
    plan = Horizon.of(Fidelity("seconds", 10, 5), 16, None, clock)
    clock.now += 3
    assert plan.due(1)
    clock.now += 3
    assert plan.due(1)
    assert plan.position(1) == 3.0


def test_time_spent_between_step_and_resume_does_not_count() -> None:
    clock = Clock()
    plan = Horizon.of(Fidelity("seconds", 10, 5), 16, None, clock)
    clock.now += 2
    assert plan.due(1)
    clock.now += 500
    plan.resume(1, plan.position(1))
    clock.now += 1
    assert plan.position(2) == 3.0
    assert not plan.due(2)
