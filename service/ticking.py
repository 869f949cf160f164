"""A thread that does something again and again until it is told to stop, whatever goes wrong in between."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

log = logging.getLogger(__name__)


class Ticking:
    """Calls `work` every `interval_s` from `start` until `stop`, the first time after `first_s`."""

    def __init__(self, name: str, work: Callable[[], None], interval_s: float, first_s: float | None = None) -> None:
        self._name, self._work, self._interval_s = name, work, interval_s
        self._first_s = interval_s if first_s is None else first_s
        self._stop = threading.Event()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, patience_s: float = 5.0) -> None:
        """No more work is begun; what is under way has `patience_s` to end."""
        self._stop.set()
        self._thread.join(patience_s)

    def _run(self) -> None:
        pause_s = self._first_s
        while not self._stop.wait(pause_s):
            pause_s = self._interval_s
            try:
                self._work()
                self._is_failing = False
            except SQLAlchemyError as error:
                if not self._is_failing:  # a database that is away or not migrated is told once; `/readyz` says it too
                    log.warning("%s: the database does not answer: %s", self._name, error)
                self._is_failing = True
            except Exception:
                log.exception("%s has failed; it goes on", self._name)
