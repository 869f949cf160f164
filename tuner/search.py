"""The Optuna study of a job: ask, report, tell, and taking it up again after a death. Only the runner writes it."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, PendingRollbackError, SQLAlchemyError

from tuner.connections import connect_arguments
from tuner.errors import StudyInterruptedError
from tuner.jobspec import ResolvedJob
from tuner.records import EarlierEnd, Outcome, Point
from tuner.reports import Mark
from tuner.samplers import ProposedSampler, configuration_key, make_pruner, make_sampler
from tuner.study_space import StudySpace

LEARNT_FROM = {Outcome.PRUNED, Outcome.DIVERGED, Outcome.OUT_OF_MEMORY}
PATIENCE_S = 120.0  # with a database that is locked, or that is starting again

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
    pace: Mapping[str, float] = field(default_factory=dict)
    """`noise_scale` and `samples_per_s`, where they were measured."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the study knows of a trial: its values by report index, and its end (None while it is open)."""

    number: int
    parameters: Mapping[str, Any]
    is_baseline: bool
    outcome: Outcome | None
    value: float | None
    curve: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a trial is paused: the mark that its probe numbered `left_by` has left, and what its probes have cost."""

    mark: Mark
    left_by: int
    device_seconds: float


def open_storage(url: str, guard: Callable[[Connection], None] | None = None) -> optuna.storages.RDBStorage:
    """Optuna's tables behind `url`; patient with a locked SQLite file.

    `guard` is called in every transaction just before its commit; what it raises undoes the transaction.
    """
    arguments = {"connect_args": connect_arguments(url), "pool_pre_ping": not url.startswith("sqlite")}
    storage = optuna.storages.RDBStorage(url, engine_kwargs=arguments)
    if guard is not None:
        event.listen(storage.engine, "commit", guard)
    return storage


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
        self.job = job
        self._space = StudySpace(job.space)
        self._open: dict[int, optuna.Trial] = {}
        self._closed: dict[int, Closed] = {}
        self._asked: set[str] = set()
        with quiet_optuna():
            self.study = self._retry(lambda: self._create_study(job_id, storage))
        self._take_up()

    def narrow(self, job: ResolvedJob) -> None:
        """Search `job` instead, whose space is a part of this one's; before the first trial."""
        self.job = job
        self._space = StudySpace(job.space)
        self._take_up()

    def _take_up(self) -> None:
        trials = self._trials()
        # Other random numbers for a study that is taken up again: the same ones would repeat its first trials.
        self.study.sampler = make_sampler(self.job.sampler, self._space, (self.job.seed + len(trials)) % 2**32)
        self._closed = {}
        self._asked = set()
        self._queued = 0
        for trial in trials:
            if trial.state == TrialState.WAITING:
                self._queued += 1
                continue
            if self._space.contains(trial.params):
                self._asked.add(configuration_key(trial.params))
            if "end" in trial.user_attrs:
                self._closed[trial.number] = closed_trial(trial.number, start_of(trial), trial.user_attrs["end"])

    def _create_study(self, name: str, storage: optuna.storages.BaseStorage) -> optuna.Study:
        objective, fidelity = self.job.objective, self.job.fidelity
        study = optuna.create_study(
            study_name=name,
            storage=storage,
            direction=objective.direction,
            load_if_exists=True,
            pruner=make_pruner(self.job.pruner, fidelity.reports),
        )
        study.set_metric_names([objective.metric])
        return study

    def _trials(self) -> list[FrozenTrial]:
        return self._retry(lambda: self.study.get_trials(deepcopy=False))

    def left_open(self) -> list[Candidate]:
        """The trials that a dead runner never saw the end of; `resume` makes them lost."""
        return [candidate_of(trial) for trial in self._strays() if "end" not in trial.user_attrs]

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self._trials())

    def seen(self) -> list[Seen]:
        """All trials that have begun, by number."""
        found = []
        for trial in self._trials():
            start, end = start_of(trial), trial.user_attrs.get("end")
            if trial.state == TrialState.WAITING or "parameters" not in start:
                continue
            outcome = None if end is None else Outcome(end["outcome"])
            value = None if end is None else end["value"]
            is_baseline = bool(start.get("is_baseline", False))
            curve = dict(trial.intermediate_values)
            found.append(Seen(trial.number, start["parameters"], is_baseline, outcome, value, curve))
        return found

    def pause(self, number: int, kept: Kept) -> None:
        """Remember where a trial is paused, for whoever takes up the study."""
        told = {"mark": kept.mark.to_json(), "left_by": kept.left_by, "device_seconds": kept.device_seconds}
        self._retry(lambda: self._open[number].set_user_attr("paused", told))

    def kept(self, number: int) -> Kept | None:
        """Where a trial was paused last, if it was."""
        told = self._trials()[number].user_attrs.get("paused")
        if told is None:
            return None
        return Kept(Mark(**told["mark"]), told["left_by"], told["device_seconds"])

    def reopen(self, candidate: Candidate) -> None:
        """Go on with a trial that an earlier attempt has left open."""
        trial_id = self._trials()[candidate.number]._trial_id
        with quiet_optuna():
            self._open[candidate.number] = self._retry(lambda: optuna.Trial(self.study, trial_id))

    def resume(self, ends: Mapping[int, EarlierEnd] | None = None) -> None:
        """Close what a dead runner left RUNNING, queue once more what it lost, see that the baseline is there.

        `ends` are those that the observer was told of; all else is lost. A death can come between any two writes; what
        was written is enough to go on from each.
        """
        self._close_strays(ends or {})
        if not self._trials():
            self._enqueue(self.job.baseline, {"is_baseline": True})

    def _strays(self) -> list[FrozenTrial]:
        running = [trial for trial in self._trials() if trial.state == TrialState.RUNNING]
        return [trial for trial in running if trial.number not in self._open]

    def _close_strays(self, ends: Mapping[int, EarlierEnd]) -> None:
        for trial in self._strays():
            told = ends.get(trial.number)
            if "end" in trial.user_attrs:
                end = trial.user_attrs["end"]
                self._tell(trial.number, Outcome(end["outcome"]), end["value"])
            elif told is None or told.outcome == Outcome.LOST:
                spent = 0.0 if told is None else told.device_seconds
                self._forget(trial.number, trial._trial_id, start_of(trial), spent)
            else:
                end = {
                    "outcome": told.outcome,
                    "value": told.value if told.outcome == Outcome.OK else None,
                    "full_runs": min(1.0, told.position / self.job.fidelity.max),
                    "device_seconds": told.device_seconds,
                }
                self._close(trial.number, trial._trial_id, start_of(trial), end)

    @property
    def earlier_seconds(self) -> float:
        """Wall seconds that earlier attempts at this job have taken, as last remembered."""
        return float(self._retry(lambda: self.study.user_attrs).get("elapsed_seconds", 0.0))

    def remember_seconds(self, seconds: float) -> None:
        """Keep the wall seconds that the job has taken so far."""
        self._retry(lambda: self.study.set_user_attr("elapsed_seconds", round(seconds, 3)))

    @property
    def finalists(self) -> list[Mapping[str, Any]] | None:
        """What was chosen to be confirmed, once it was: an attempt later would perhaps choose others."""
        found: list[Mapping[str, Any]] | None = self._retry(lambda: self.study.user_attrs).get("finalists")
        return found

    def remember_finalists(self, finalists: Sequence[Mapping[str, Any]]) -> None:
        self._retry(lambda: self.study.set_user_attr("finalists", list(finalists)))

    @property
    def rates(self) -> Mapping[str, Any] | None:
        """What the learning rate range test came to, once it was over."""
        found: Mapping[str, Any] | None = self._retry(lambda: self.study.user_attrs).get("range_test")
        return found

    def remember_rates(self, found: Mapping[str, Any]) -> None:
        self._retry(lambda: self.study.set_user_attr("range_test", dict(found)))

    def suggest(self, parameters: Mapping[str, Any], source: str) -> None:
        """Queue a configuration that is tried before the sampler's own, one from each source; that completes it."""
        self._enqueue(parameters, {"suggested_by": source})

    def lose(self, number: int, device_seconds: float) -> Closed:
        """The trial's slot died under it: lost, and queued again unless it was a second try already."""
        trial = self._open.pop(number)
        return self._forget(number, trial._trial_id, trial.user_attrs["start"], device_seconds)

    def _forget(self, number: int, trial_id: int, start: Mapping[str, Any], device_seconds: float) -> Closed:
        is_baseline = bool(start.get("is_baseline", False))  # without it the job is worth nothing: it may be lost twice
        if "parameters" in start and (is_baseline or start.get("retry_of") is None):
            self._enqueue(start["parameters"], {"is_baseline": is_baseline, "retry_of": number})
        end = {"outcome": Outcome.LOST, "value": None, "full_runs": 0.0, "device_seconds": device_seconds}
        return self._close(number, trial_id, start, end)

    def _enqueue(self, parameters: Mapping[str, Any], attrs: Mapping[str, Any]) -> None:
        """Queue a configuration, unless that was done before somebody died or a connection broke."""
        stored = self._space.to_study(parameters)
        queued = {**attrs, "parameters": dict(parameters)}

        def put() -> bool:
            known = [trial.user_attrs.get("queued") for trial in self.study.get_trials(deepcopy=False)]
            if any(one is not None and _why_queued(one) == _why_queued(queued) for one in known):
                return False
            self.study.enqueue_trial(stored, user_attrs={"queued": queued})
            return True

        with quiet_optuna():
            self._queued += self._retry(put)

    def ask(self, tidy_up: Callable[[], None] | None = None, proposed: Mapping[str, Any] | None = None) -> Candidate:
        """The next configuration: what is queued first, else what is `proposed`, else what the sampler chooses.

        `tidy_up` is called where the database failed half way: like `resume` it closes the trial that may be there.
        """
        if isinstance(self.study.sampler, ProposedSampler):
            self.study.sampler.proposed = self._space.to_study(proposed or {})
        with quiet_optuna():
            trial = self._retry(lambda: self._space.ask(self.study), tidy_up or self.resume)
        queued = trial.user_attrs.get("queued", {})
        self._queued -= bool(queued)
        stored = trial.params
        if self._space.contains(stored):
            self._asked.add(configuration_key(stored))
        parameters = self._space.from_study(stored)
        parameters.update(queued.get("parameters", {}) if queued else proposed or {})  # exact, as it was asked for
        candidate = Candidate(trial.number, parameters, bool(queued.get("is_baseline", False)), queued.get("retry_of"))
        start = {k: v for k, v in asdict(candidate).items() if k != "number"}
        self._retry(lambda: trial.set_user_attr("start", start))
        self._open[trial.number] = trial
        return candidate

    def report(self, number: int, point: Point) -> None:
        """Record a point; a repeated index keeps its first value: a probe may go on from before its trial's last."""
        if point.index in self._open[number]._cached_frozen_trial.intermediate_values:
            return
        value = float("nan") if point.value.number is None else point.value.number
        if point.value.kind in ("+inf", "-inf"):
            value = float(point.value.kind)
        self._retry(lambda: self._open[number].report(value, point.index))

    def should_prune(self, number: int) -> bool:
        """Whether the pruner wants the trial to end, judging by its last point."""
        return self._retry(self._open[number].should_prune)

    def tell(
        self,
        number: int,
        outcome: Outcome,
        value: float | None,
        *,
        full_runs: float,
        device_seconds: float,
        pace: Mapping[str, float] = MappingProxyType({}),
    ) -> Closed:
        """Close a trial. `diverged` and `out_of_memory` are told PRUNED, so that the sampler learns from them."""
        trial = self._open.pop(number)
        spent = {"full_runs": full_runs, "device_seconds": device_seconds, "pace": dict(pace)}
        end = {"outcome": outcome, "value": value, **spent}
        return self._close(number, trial._trial_id, trial.user_attrs["start"], end)

    def _close(self, number: int, trial_id: int, start: Mapping[str, Any], end: Mapping[str, Any]) -> Closed:
        self._retry(lambda: self.study._storage.set_trial_user_attr(trial_id, "end", dict(end)))
        self._tell(number, Outcome(end["outcome"]), end["value"])
        self._closed[number] = closed_trial(number, start, end)
        return self._closed[number]

    def _tell(self, number: int, outcome: Outcome, value: float | None) -> None:
        with quiet_optuna():
            if outcome == Outcome.OK:
                self._retry(lambda: self.study.tell(number, value, skip_if_finished=True))
            else:
                state = TrialState.PRUNED if outcome in LEARNT_FROM else TrialState.FAIL
                self._retry(lambda: self.study.tell(number, state=state, skip_if_finished=True))

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
        return self._space.size is not None and len(self._asked) >= self._space.size

    def _retry(self, call: Callable[[], T], tidy_up: Callable[[], None] = lambda: None) -> T:
        """Call again while the database is locked or out of reach, after `tidy_up` where a call can stop half way.

        Every call has to be one that may be made twice: it may have been done though its answer was lost. Raises
        StudyInterruptedError after PATIENCE_S.
        """
        deadline = time.monotonic() + PATIENCE_S
        pause_s = 0.05
        must_tidy = False
        while True:
            try:
                if must_tidy:
                    tidy_up()
                    must_tidy = False
                return call()
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                if not is_passing(error):
                    raise
                if time.monotonic() + pause_s > deadline:
                    raise StudyInterruptedError(f"The study's database does not answer: {error}") from error
                must_tidy = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 2.0)


def is_passing(error: BaseException) -> bool:
    """Whether a database may answer again: it was locked, or the connection broke."""
    passing = (OperationalError, InterfaceError, PendingRollbackError)  # the last: Optuna goes on after the first
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, passing):
        if isinstance(cause, DBAPIError) and cause.connection_invalidated:
            return True
        cause = cause.__cause__
    return cause is not None


def _why_queued(queued: Mapping[str, Any]) -> tuple[Any, Any]:
    """The same for a configuration that is queued once more after a death: the baseline's is nothing."""
    return queued.get("retry_of"), queued.get("suggested_by")


def candidate_of(trial: FrozenTrial) -> Candidate:
    """What is known of a trial that its runner left."""
    start = start_of(trial)
    return Candidate(
        trial.number, start.get("parameters", {}), bool(start.get("is_baseline", False)), start.get("retry_of")
    )


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
        pace=end.get("pace") or {},
    )
