"""Which confirmation runs are due."""

from __future__ import annotations

from tests.tuner.support import closed, confirmation
from tuner.confirm_plan import ConfirmPlan
from tuner.records import Confirmation, Outcome

BASELINE = closed(0, is_baseline=True)
NOISE = (0.3, -0.2, 0.1, -0.3, 0.2, 0.0, 0.1, -0.1)


def plan(runs: list[Confirmation] | None = None, seeds: int = 5, finalists: int = 1) -> ConfirmPlan:
    return ConfirmPlan(BASELINE, [closed(n) for n in range(1, finalists + 1)], "minimize", seeds, 7, runs or [])


def complete(one: ConfirmPlan, gain: float, noise: tuple[float, ...] = NOISE) -> None:
    """Make every run that is due; finalists are better than the baseline by `gain`, give or take `noise`."""
    for planned in list(one.missing()):
        position = one.current_seeds.index(planned.seed)
        value = 1.0 if planned.candidate.number == 0 else 1.0 - gain + noise[position]
        one.runs.append(confirmation(planned.candidate.number, planned.seed, value))


def test_runs_come_seed_by_seed_with_the_baseline_first() -> None:
    first = [(run.candidate.number, run.seed) for run in plan(finalists=2).missing()][:4]

    seeds = plan().current_seeds
    assert first == [(0, seeds[0]), (1, seeds[0]), (2, seeds[0]), (0, seeds[1])]


def test_a_clear_result_ends_after_the_first_look() -> None:
    one = plan()
    complete(one, gain=5.0)

    assert not one.extend()
    assert one.judge()[1].status == "proven"
    assert one.total == 10


def test_an_unclear_lead_goes_on_to_eight_seeds_and_no_further() -> None:
    one = plan()
    complete(one, gain=0.05)

    assert one.extension == 6
    assert one.extend()
    assert len(list(one.missing())) == 6
    complete(one, gain=0.05)
    assert (one.total, one.extension, one.extend()) == (16, 0, False)
    assert one.judge()[1].seeds == 8


def test_eight_seeds_from_the_start_are_one_look() -> None:
    one = plan(seeds=8)
    complete(one, gain=0.05)

    assert (one.extension, one.extend()) == (0, False)


def test_an_earlier_attempts_runs_are_not_made_again() -> None:
    first = plan()
    complete(first, gain=0.05)
    first.extend()
    for planned in list(first.missing())[:4]:
        first.runs.append(confirmation(planned.candidate.number, planned.seed, 1.0))

    second = plan(list(first.runs))

    assert list(second.missing()) == []
    assert second.extension == 2
    assert second.extend()
    assert len(list(second.missing())) == 2


def test_a_lost_run_is_due_again() -> None:
    one = plan()
    planned = next(one.missing())
    one.runs.append(confirmation(planned.candidate.number, planned.seed, None, Outcome.LOST))

    assert next(one.missing()) == planned
    assert one.was_lost(planned)


def test_a_run_that_was_lost_or_cut_short_does_not_count_as_a_failure() -> None:
    whole, cut = plan(), plan()
    complete(whole, gain=5.0)
    complete(cut, gain=5.0)
    cut.runs = [run for run in cut.runs if run.seed != cut.current_seeds[4]]
    for outcome, trial in ((Outcome.CANCELLED, 1), (Outcome.LOST, 0)):
        cut.runs.append(confirmation(trial, cut.current_seeds[4], None, outcome))

    judged = cut.judge()[1]

    assert (judged.seeds, judged.failures, judged.status) == (4, 0, "proven")
    assert whole.judge()[1].seeds == 5


def test_a_run_that_crashed_counts_against_its_configuration() -> None:
    one = plan()
    complete(one, gain=5.0)
    crashed = one.runs.pop()
    one.runs.append(confirmation(crashed.trial, crashed.seed, None, Outcome.CRASHED))

    assert (one.judge()[1].failures, one.judge()[1].test) == (1, "sign")
