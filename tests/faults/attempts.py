"""Attempts at a job without Ray: real tables, real study, slots that follow a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa

from service.database import Database
from service.recorder import Recorder, earlier_confirmations, earlier_ends
from service.store import queue
from tests.tuner.support import CPU, ScriptedSlots, bowl, long_bowl
from tuner.checkpoints import Checkpoints
from tuner.coordinator import Coordinator
from tuner.jobspec import ResolvedJob
from tuner.search import Search, open_storage

SPEC: dict[str, Any] = {
    "workload": "quadratic",
    "search": {"lr": {"low": 0.002, "high": 0.02, "log": True}},
    "fidelity": {"axis": "samples", "max": 640, "reports": 4},
    "budget": {"trials": 3},
    "sampler": "random",
    "pruner": "none",
    "confirm": {"top": 1, "seeds": 2},
}
PAUSING: dict[str, Any] = {
    **SPEC,
    "sampler": "auto",
    "pruner": "auto",
    "fidelity": {"axis": "samples", "max": 640, "reports": 8},
    "budget": {"trials": 5},
}
MEASURED: dict[str, Any] = {
    **SPEC,
    "workload": "digits-cnn",
    "search": {},
    "fidelity": {"axis": "samples", "max": 80_000, "reports": 4},
    "confirm": {"seeds": 0},
}
"""Its precision is measured, and its rates are."""


class Killed(BaseException):
    """Stands for kill -9."""


@dataclass
class Commits:
    """Counts commits, and kills just before or just after the one numbered `kill_at`."""

    kill_at: int | None = None
    after: bool = False
    done: int = 0

    def watch(self, engine: sa.Engine) -> None:
        commit: Callable[[Any], None] = engine.dialect.do_commit

        def counted(connection: Any) -> None:
            self.done += 1
            if self.done == self.kill_at and not self.after:
                raise Killed
            commit(connection)
            if self.done == self.kill_at:
                raise Killed

        engine.dialect.do_commit = counted  # type: ignore[method-assign,assignment]


class Attempt:
    """One runner's attempt at the next job in the queue."""

    def __init__(self, url: str, owner: str, commits: Commits | None = None, checkpoints: Path | None = None) -> None:
        self.database = Database(url)
        self._checkpoints = checkpoints
        claim = self.database.transact(lambda session: queue.claim(session, owner, 30.0))
        assert claim is not None
        self.lease = claim.lease
        self.storage: optuna.storages.RDBStorage = open_storage(url, queue.guard(claim.lease))
        if commits is not None:
            commits.watch(self.database.engine)
            commits.watch(self.storage.engine)
        self._job = claim.job

    def begin(self, slots: int = 2) -> ScriptedSlots:
        """Take up the study."""
        resolved = ResolvedJob.from_json(self._job.resolved)
        self.recorder = Recorder(self.database, self.lease, self._job, resolved, lambda: False)
        confirmations = self.database.transact(lambda session: earlier_confirmations(session, self._job.id))
        ends = self.database.transact(lambda session: earlier_ends(session, self._job.id))
        self.search = Search(resolved, self._job.id, self.storage)
        self.coordinator = Coordinator(
            resolved,
            self._job.id,
            self.search,
            self.recorder,
            device=CPU,
            slots=slots,
            confirmations=confirmations,
            ends=ends,
            fit=self._job.fit,
            rates=self._job.range_test,
            checkpoints=Checkpoints(self._checkpoints / self._job.id if self._checkpoints else None),
        )
        self.coordinator.begin()
        return ScriptedSlots(self.coordinator, slots, curve=long_bowl if self._checkpoints else bowl)

    def play(self) -> None:
        """To the end of the job."""
        self.begin().play()
        self.recorder.finish(self.coordinator.result())

    def close(self) -> None:
        self.storage.remove_session()
        self.storage.engine.dispose()
        self.database.close()


def bury(database: Database, owner: str) -> None:
    """What the next runner does for a dead one."""
    with database.write() as session:
        queue.expire(session, owner)
