"""The Optuna study of a job: ask, report, tell, and taking it up again after a death. Only the runner writes it."""

from __future__ import annotations

import contextlib
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import OperationalError

from tuner.jobspec import Fixed, ResolvedJob
from tuner.records import Outcome, Point
from tuner.samplers import (
    configuration_key,
    distribution,
    from_study,
    is_inside,
    make_pruner,
    make_sampler,
    space_size,
    to_study,
)

LEARNT_FROM = {Outcome.PRUNED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY}
LOCKED_RETRIES = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration to be tried, with all parameters, fixed ones included."""

    number: int
    parameters: Mapping[str, Any]
    is_baseline: bool
    retry_of: int | None


@dataclass(frozen=True, slots=True)
class Closed:
    """A trial that has ended, as the study remembers it."""

    number: int
    parameters: Mapping[str, Any]
    is_baseline: bool
    outcome: Outcome
    value: float | None
    full_runs: float
    device_seconds: float


def open_storage(url: str) -> optuna.storages.RDBStorage:
    """Optuna's tables behind `url`; patient with a locked SQLite file."""
    is_sqlite = url.startswith("sqlite")
    arguments: dict[str, Any] = {"connect_args": {"timeout": 60}} if is_sqlite else {"pool_pre_ping": True}
    return optuna.storages.RDBStorage(url, engine_kwargs=arguments)


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """No log lines, and no warnings about enqueued values outside a range (the baseline may lie there)."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message=".*is out of range.*")
        warnings.filterwarnings("ignore", message=".*out of range for.*")
        yield


class Search:
    """Ask and tell over one study. The baseline is always the first trial."""

    def __init__(self, job: ResolvedJob, job_id: str, storage: optuna.storages.BaseStorage) -> None:
        self._job = job
        self._distributions = {name: distribution(p) for name, p in job.searched.items()}
        self._open: dict[int, optuna.Trial] = {}
        with quiet_optuna():
            self.study = optuna.create_study(
                study_name=job_id,
                storage=storage,
                direction=job.objective.direction,
                load_if_exists=True,
                pruner=make_pruner(job.pruner, job.fidelity.reports),
            )
            self.study.set_metric_names([job.objective.metric])
        trials = self.study.get_trials(deepcopy=False)
        # Other random numbers for a study that is taken up again: the same ones would repeat its first trials.
        self.study.sampler = make_sampler(job.sampler, self._distributions, (job.seed + len(trials)) % 2**32)
        self._closed: dict[int, Closed] = {}
        self._asked: set[str] = set()
        self._queued = 0
        for trial in trials:
            if trial.state == TrialState.WAITING:
                self._queued += 1
                continue
            if is_inside(trial.params, self._distributions):
                self._asked.add(configuration_key(trial.params))
            if "end" in trial.user_attrs:
                self._closed[trial.number] = closed_trial(trial.number, start_of(trial), trial.user_attrs["end"])

    def left_open(self) -> list[int]:
        """The numbers of the trials that a dead runner never saw the end of; `resume` makes them lost."""
        return [trial.number for trial in self._strays() if "end" not in trial.user_attrs]

    def resume(self) -> None:
        """Close what a dead runner left RUNNING as lost, queue each of those once more, see that the baseline is there.

        A death can come between any two writes; what was written is enough to go on from each.
        """
        self._close_strays()
        if not self.study.get_trials(deepcopy=False):
            self._enqueue(self._job.baseline, {"is_baseline": True})

    def _strays(self) -> list[FrozenTrial]:
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [trial for trial in running if trial.number not in self._open]

    def _close_strays(self) -> None:
        for trial in self._strays():
            if "end" in trial.user_attrs:
                end = trial.user_attrs["end"]
                self._tell(trial.number, Outcome(end["outcome"]), end["value"])
            else:
                self._forget(trial.number, trial._trial_id, start_of(trial), 0.0)

    @property
    def earlier_seconds(self) -> float:
        """Wall seconds that earlier attempts at this job have taken, as last remembered."""
        return float(self.study.user_attrs.get("elapsed_seconds", 0.0))

    def remember_seconds(self, seconds: float) -> None:
        """Keep the wall seconds that the job has taken so far."""
        self._retry(lambda: self.study.set_user_attr("elapsed_seconds", round(seconds, 3)))

    def lose(self, number: int, device_seconds: float) -> Closed:
        """The trial's slot died under it: lost, and queued again unless it was a second try already."""
        trial = self._open.pop(number)
        return self._forget(number, trial._trial_id, trial.user_attrs["start"], device_seconds)

    def _forget(self, number: int, trial_id: int, start: Mapping[str, Any], device_seconds: float) -> Closed:
        if "parameters" in start and start.get("retry_of") is None and not self._is_queued_again(number):
            attrs = {"is_baseline": start.get("is_baseline", False), "retry_of": number}
            self._enqueue(start["parameters"], attrs)
        end = {"outcome": Outcome.LOST, "value": None, "full_runs": 0.0, "device_seconds": device_seconds}
        self._retry(lambda: self.study._storage.set_trial_user_attr(trial_id, "end", end))
        self._tell(number, Outcome.LOST, None)
        self._closed[number] = closed_trial(number, start, end)
        return self._closed[number]

    def _is_queued_again(self, number: int) -> bool:
        queued = (trial.user_attrs.get("queued", {}) for trial in self.study.get_trials(deepcopy=False))
        return any(attrs.get("retry_of") == number for attrs in queued)

    def _enqueue(self, parameters: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        stored = {name: to_study(p, parameters[name]) for name, p in self._job.searched.items()}
        queued = {**attrs, "parameters": dict(parameters)}
        with quiet_optuna():
            self._retry(lambda: self.study.enqueue_trial(stored, user_attrs={"queued": queued}))
        self._queued += 1

    def ask(self) -> Candidate:
        """The next configuration: what is queued first, else what the sampler proposes."""
        with quiet_optuna():
            trial = self._retry(lambda: self.study.ask(self._distributions), self._close_strays)
        queued = trial.user_attrs.get("queued", {})
        self._queued -= bool(queued)
        stored = trial.params
        if is_inside(stored, self._distributions):
            self._asked.add(configuration_key(stored))
        parameters = {
            name: p.value if isinstance(p, Fixed) else from_study(p, stored[name])
            for name, p in self._job.space.items()
        }
        parameters.update(queued.get("parameters", {}))  # exact, also where the study cannot hold the value
        candidate = Candidate(trial.number, parameters, bool(queued.get("is_baseline", False)), queued.get("retry_of"))
        start = {k: v for k, v in asdict(candidate).items() if k != "number"}
        self._retry(lambda: trial.set_user_attr("start", start))
        self._open[trial.number] = trial
        return candidate

    def report(self, number: int, point: Point) -> None:
        """Record a point; a repeated index keeps its first value."""
        value = float("nan") if point.value.number is None else point.value.number
        if point.value.kind in ("+inf", "-inf"):
            value = float(point.value.kind)
        self._retry(lambda: self._open[number].report(value, point.index))

    def should_prune(self, number: int) -> bool:
        """Whether the pruner wants the trial to end, judging by its last point."""
        return self._retry(self._open[number].should_prune)

    def tell(
        self, number: int, outcome: Outcome, value: float | None, *, full_runs: float, device_seconds: float
    ) -> Closed:
        """Close a trial. `diverged` and `out_of_memory` are told PRUNED, so that the sampler learns from them."""
        trial = self._open.pop(number)
        end = {"outcome": outcome, "value": value, "full_runs": full_runs, "device_seconds": device_seconds}
        self._retry(lambda: trial.set_user_attr("end", end))
        self._tell(number, outcome, value)
        self._closed[number] = closed_trial(number, trial.user_attrs["start"], end)
        return self._closed[number]

    def _tell(self, number: int, outcome: Outcome, value: float | None) -> None:
        with quiet_optuna():
            if outcome == Outcome.OK:
                self._retry(lambda: self.study.tell(number, value))
            else:
                state = TrialState.PRUNED if outcome in LEARNT_FROM else TrialState.FAIL
                self._retry(lambda: self.study.tell(number, state=state))

    def closed(self) -> list[Closed]:
        """Every trial that has ended, in the order of their ends."""
        return list(self._closed.values())

    @property
    def has_queued(self) -> bool:
        """Whether a retry or the baseline is waiting."""
        return self._queued > 0

    @property
    def is_exhausted(self) -> bool:
        """Whether every configuration of a finite space has been tried."""
        size = space_size(self._distributions)
        return size is not None and len(self._asked) >= size

    def _retry(self, call: Callable[[], T], tidy_up: Callable[[], None] = lambda: None) -> T:
        """Call again while SQLite says that it is locked, after `tidy_up` where a call can stop half way."""
        for attempt in range(LOCKED_RETRIES):
            try:
                return call()
            except (OperationalError, optuna.exceptions.StorageInternalError) as error:
                cause = error.__cause__ or error
                if "locked" not in f"{error} {cause}" and not isinstance(cause, sqlite3.OperationalError):
                    raise
                time.sleep(0.05 * (attempt + 1))
                tidy_up()
        return call()


def start_of(trial: FrozenTrial) -> Mapping[str, Any]:
    """What a trial is about; empty when its runner died before the sampler's choice was written."""
    start: Mapping[str, Any] = trial.user_attrs.get("start") or trial.user_attrs.get("queued", {})
    return start


def closed_trial(number: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> Closed:
    """A closed trial from the two user attributes that we keep on it."""
    return Closed(
        number=number,
        parameters=start.get("parameters", {}),
        is_baseline=bool(start.get("is_baseline", False)),
        outcome=Outcome(end["outcome"]),
        value=end["value"],
        full_runs=end["full_runs"],
        device_seconds=end["device_seconds"],
    )
