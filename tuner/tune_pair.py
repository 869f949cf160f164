"""Our own pair for Ray Tune: a searcher that asks the coordinator, a scheduler that lets it judge every result.

A stopper, which Tune asks ten times a second, lets the coordinator look after a study from which no result comes.

Tune's own OptunaSearch prunes nothing, loses the last report of a stopped trial and leaves trials with NaN running.
Reports are judged in the scheduler, because Tune skips the searcher for the result that ends a trial. Only ids are
kept here; both objects pickle without the coordinator.

Tune's own PAUSED state is not used: a trial of ours that is paused has its probe end, and the Tune trial with it, and
goes on in another one (docs/decisions/0010).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from tuner.assignment import SlotReport, SlotSetup
from tuner.cluster import ClusterGone, has_living_node
from tuner.coordinator import Coordinator
from tuner.phases import Decision

T = TypeVar("T")
NODES_CHECK_S = 5.0


class Runs:
    """Which Tune trial makes which run; the only way to the coordinator.

    An exception of the coordinator (a lost lease) is kept in `failure` and ends the study: Tune itself would swallow
    one that is raised while it stops a trial.
    """

    def __init__(self, coordinator: Coordinator, setup: SlotSetup) -> None:
        self.coordinator = coordinator
        self.setup = setup
        self.key_of: dict[str, str] = {}
        self.failure: BaseException | None = None

    def call(self, act: Callable[[], T], otherwise: T) -> T:
        """`act()`, or `otherwise` from the first failure on."""
        if self.failure is None:
            try:
                return act()
            except Exception as error:
                self.failure = error
        return otherwise

    def __getstate__(self) -> dict[str, Any]:
        return {"key_of": self.key_of}


class StudySearcher(Searcher):
    """Asks the coordinator for the next run whenever Tune has room for one."""

    def __init__(self, runs: Runs) -> None:
        super().__init__()
        self._runs = runs

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        coordinator = self._runs.coordinator
        assignment = self._runs.call(coordinator.next, None)
        if assignment is None:
            is_over = coordinator.is_finished or self._runs.failure is not None
            return cast("dict[str, Any]", Searcher.FINISHED) if is_over else None  # Tune's marker is a text
        self._runs.key_of[trial_id] = assignment.key
        return {"assignment": assignment, "setup": self._runs.setup}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        key = self._runs.key_of.pop(trial_id, None)
        if error and key is not None:
            self._runs.call(lambda: self._runs.coordinator.on_lost(key, "the slot's process died"), None)

    def save(self, checkpoint_path: str) -> None:
        """Nothing to save: a study is taken up again from SQL, not from Tune's snapshot."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


class StudyStopper(Stopper):
    """Ends a study that has failed or was cancelled, or whose Ray is gone, also when no slot reports."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._looked_at = time.monotonic()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        if time.monotonic() - self._looked_at > NODES_CHECK_S:
            self._looked_at = time.monotonic()
            if not has_living_node():  # Tune would wait for ever
                self._runs.failure = self._runs.failure or ClusterGone()
        self._runs.call(self._runs.coordinator.tend, None)
        return self._runs.failure is not None or self._runs.coordinator.is_cancelled_and_done


class StudyScheduler(TrialScheduler):
    """Hands every result to the coordinator and passes its decision on to Tune."""

    _supports_buffered_results = False

    def __init__(self, runs: Runs, slots: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Ray
        self._runs = runs
        self._slots = slots
        self._keeps_actors = False

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        key = self._runs.key_of.get(trial.trial_id)
        report: SlotReport = result["slot"]
        if key is None:
            return str(TrialScheduler.STOP)
        decision = self._runs.call(lambda: self._runs.coordinator.on_report(key, report), Decision.STOP)
        if decision == Decision.PAUSE:
            # Before Tune schedules the next step: calls of an actor are made in their order.
            tune_controller._schedule_trial_task(trial=trial, method_name="pause_probe")
        return str(TrialScheduler.STOP if decision == Decision.STOP else TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """A result with `done` comes only here, not to `on_trial_result`."""
        key = self._runs.key_of.get(trial.trial_id)
        report = result.get("slot")
        if key is not None and report is not None and report.end is not None:
            self._runs.call(lambda: self._runs.coordinator.on_report(key, report), Decision.STOP)

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Have Tune keep the actors of idle slots: by itself it keeps one, and the next phase would start cold."""
        if not self._keeps_actors:
            self._keeps_actors = True
            tune_controller._actor_cache.increase_max(trial.placement_group_factory, by=self._slots)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None: ...

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None: ...

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        return None  # Tune starts pending trials by itself

    def debug_string(self) -> str:
        return "x5tune"

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...
