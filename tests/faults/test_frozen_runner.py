"""A runner that was frozen for longer than its lease wakes up and must change nothing any more."""

from __future__ import annotations

from collections.abc import Callable

import optuna
import pytest
import sqlalchemy as sa

from bench.faults_checks import violations
from service.database import Database
from service.errors import LeaseLostError
from service.settings import Settings
from tests.faults.attempts import SPEC, Attempt, bury
from tests.service.support import add_job
from tuner.records import Outcome, Point, Value

WAKES: dict[str, Callable[[Attempt], object]] = {
    "asks": lambda attempt: attempt.search.ask(),
    "reports": lambda attempt: attempt.search.report(0, Point(4, 640.0, 4, Value.of(9.0))),
    "tells": lambda attempt: attempt.search.tell(0, Outcome.OK, -1.0, full_runs=1.0, device_seconds=1.0),
    "loses": lambda attempt: attempt.search.lose(0, 1.0),
    "goes on": lambda attempt: attempt.begin().play(),
}


@pytest.mark.parametrize("wakes", WAKES)
@pytest.mark.parametrize("is_over", [False, True], ids=["successor at work", "successor done"])
def test_a_frozen_runner_that_wakes_changes_nothing(
    settings: Settings, database: Database, wakes: str, is_over: bool
) -> None:
    add_job(database, spec=SPEC)
    frozen = Attempt(settings.database_url, "frozen")
    slots = frozen.begin()
    slots.turn()
    slots.turn()
    bury(database, "frozen")
    successor = Attempt(settings.database_url, "successor")
    if is_over:
        successor.play()
    else:
        going_on = successor.begin()
        going_on.turn()
    before = everything(database)

    with pytest.raises((LeaseLostError, optuna.exceptions.UpdateFinishedTrialError)):
        WAKES[wakes](frozen)

    assert everything(database) == before
    if not is_over:
        going_on.play()
        successor.recorder.finish(successor.coordinator.result())
    assert violations(database) == {}
    frozen.close()
    successor.close()


def everything(database: Database) -> dict[str, list[sa.Row[tuple[object, ...]]]]:
    """All rows of all tables, Optuna's too."""
    names = sa.inspect(database.engine).get_table_names()
    with database.read() as session:
        return {name: sorted(session.execute(sa.text(f"SELECT * FROM {name}")), key=repr) for name in names}
