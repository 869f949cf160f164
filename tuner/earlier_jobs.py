"""Which earlier jobs a job may learn from, and what their trials say in its own search space; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tuner.chain_scores import Standings
from tuner.conditions import active
from tuner.convergence import seed_noise
from tuner.freeze_thaw import NOISE, RUNGS
from tuner.history import History, Task
from tuner.jobspec import OWN_SEARCH, Fixed, ResolvedJob
from tuner.records import Outcome
from tuner.spec_space import contains
from tuner.spec_values import identity
from tuner.unit_space import UnitSpace

MOST_JOBS, MOST_TRIALS = 8, 300
"""The most similar jobs, and the newest trials of each, that are read."""
FEWEST = 3
"""A job with fewer trials in the space of the new one says nothing."""
FARTHEST = 3.0
"""The largest `distance` of a job that is learnt from."""
MANY_TRIALS = 20
"""A budget of trials of which a few may go to configurations that are expected to be poor."""
WORST = {Outcome.DIVERGED, Outcome.OUT_OF_MEMORY}
NOTHING = {Outcome.CRASHED, Outcome.NO_METRIC, Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.LOST}
"""Ends that say nothing about a configuration."""


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """A trial that is over: `curve` holds the fraction of a full run and the value of each report, in their order."""

    parameters: Mapping[str, Any]
    outcome: Outcome
    curve: Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class EarlierJob:
    """A job that has ended, with its trials; `confirmed` are the results of each trial that ran on several seeds."""

    id: str
    job: ResolvedJob
    trials: Sequence[EarlierTrial]
    confirmed: Sequence[Sequence[float]] = ()


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a search starts from; `jobs` says of each earlier job its id, workload, and how many trials of it count.

    `noise` is the standard deviation of a result between seeds, where jobs on the very same work have confirmed some.
    """

    history: History | None
    jobs: Sequence[Mapping[str, Any]]
    noise: float | None = None
    earlier: Sequence[EarlierJob] = ()


def distance(job: ResolvedJob, other: ResolvedJob) -> float | None:
    """How far another job's work is from this one's, 0 the same; None when nothing can be learnt from it.

    It must have the same objective, and every parameter that is searched; a parameter that one of them fixes at
    something other than a number must not differ. A different workload counts 1, another kind of it 1 more, each
    doubling of the horizon 1/4, another axis 1. The device is left out: it decides what fits, not what trains well.
    """
    if job.objective != other.objective or not job.searched.keys() <= other.space.keys():
        return None
    for name, one in other.space.items():
        mine = job.space.get(name)
        if isinstance(one, Fixed) and isinstance(mine, Fixed) and not _are_alike(one.value, mine.value):
            return None
    found = 0.0 if job.workload == other.workload else 1.0
    found += (job.code is None) != (other.code is None)
    if job.fidelity.axis != other.fidelity.axis:
        return found + 1
    if job.fidelity.is_known and other.fidelity.is_known:
        found += abs(math.log2(job.fidelity.max / other.fidelity.max)) / 4
    return found


def most_similar(job: ResolvedJob, others: Mapping[str, ResolvedJob]) -> list[str]:
    """The ids of the jobs to learn from: the most similar first, of those the first given first."""
    far = {key: away for key, other in others.items() if (away := distance(job, other)) is not None}
    return sorted((key for key, away in far.items() if away <= FARTHEST), key=lambda key: far[key])[:MOST_JOBS]


def wants_history(job: ResolvedJob) -> bool:
    """Whether the job's search starts from earlier jobs; Optuna's samplers cannot."""
    return job.history and job.sampler == OWN_SEARCH


def learn(job: ResolvedJob, earlier: Sequence[EarlierJob]) -> Learnt:
    """The history of a job's search; none without jobs that say something, or when they contradict one another."""
    space = UnitSpace(job.space)
    noise = seed_noise(group for one in earlier if distance(job, one.job) == 0 for group in one.confirmed)
    if not space.dimensions:
        return Learnt(None, (), noise, earlier)
    tasks: list[Task] = []
    told: list[Mapping[str, Any]] = []
    for one in earlier:
        task = _task(job, space, one)
        if task is not None:
            tasks.append(task)
            told.append({"job": one.id, "workload": one.job.workload, "trials": len(task.points)})
    history = History(tasks, job.seed, is_doubted=_is_doubted(job, told)) if tasks else None
    if history is None or not history.is_trusted:
        return Learnt(None, (), noise, earlier)
    return Learnt(history, told, noise, earlier)


def _is_doubted(job: ResolvedJob, told: Sequence[Mapping[str, Any]]) -> bool:
    """Whether it is worth a glimpse at poor configurations to find out that the earlier jobs mislead.

    Jobs of the very same workload seldom do, and of few trials each one counts.
    """
    is_other = any(one["workload"] != job.workload for one in told)
    return is_other and (job.budget.trials is None or job.budget.trials >= MANY_TRIALS)


def _task(job: ResolvedJob, space: UnitSpace, earlier: EarlierJob) -> Task | None:
    sign = 1.0 if earlier.job.objective.direction == "minimize" else -1.0
    standings = Standings(len(RUNGS))
    points, rungs = {}, {}
    for number, trial in enumerate(earlier.trials):
        values = values_at_rungs(trial, sign)
        if not values or not _is_inside(job, trial.parameters):
            continue
        points[number], rungs[number] = space.point(trial.parameters), len(values) - 1
        for rung, value in enumerate(values):
            standings.add(number, rung, value)
    if len(points) < FEWEST:
        return None
    regrets, compared = standings.regrets(), standings.compared_rung()
    if len(set(regrets.values())) == 1:
        return None  # all diverged, or all ended alike: it tells no configuration from another
    noise = [NOISE[min(rungs[number], compared)] for number in points]
    return Task(np.array(list(points.values())), np.array([regrets[number] for number in points]), np.array(noise))


def values_at_rungs(trial: EarlierTrial, sign: float) -> list[float]:
    """A trial's values at the rungs that it came to, lower is better; infinity where it failed by its configuration."""
    if trial.outcome in NOTHING:
        return []
    found: list[float] = []
    for rung in RUNGS:
        value = next((v for fraction, v in trial.curve if fraction >= rung - 1e-9), None)
        if value is None or not math.isfinite(value):
            break
        found.append(sign * value)
    if trial.outcome in WORST and len(found) < len(RUNGS):
        found.append(math.inf)
    return found


def _is_inside(job: ResolvedJob, parameters: Mapping[str, Any]) -> bool:
    """Whether the new job's search could come to a configuration, what it fixes aside."""
    mine = {name: parameters.get(name) for name in job.space}
    mine |= {name: p.value for name, p in job.space.items() if isinstance(p, Fixed)}
    exists = active(job.space, mine)
    return all(contains(job.space[name], exists[name]) for name in job.searched if name in exists)


def _are_alike(left: object, right: object) -> bool:
    are_numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (left, right))
    return are_numbers or identity(left) == identity(right)
