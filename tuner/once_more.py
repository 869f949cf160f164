"""Runs that were out of memory although what they were given was proven to fit: each is made once more."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tuner.assignment import ProbeEnd
from tuner.phases import Context
from tuner.records import Outcome


class OnceMore:
    """Remembers with which micro-batch each run was made, and which were made once more, in smaller pieces."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._micro_batch: dict[str, int] = {}
        self._done: set[Hashable] = set()

    def started(self, key: str, probe: Mapping[str, Any]) -> None:
        self._micro_batch[key] = probe["derived"].get("micro_batch", 0)

    def is_due(self, key: str, run: Hashable, end: ProbeEnd, *, is_over: bool) -> bool:
        """Whether `run`, whose probe `key` has ended, is to be made again; from now on smaller pieces are used.

        Nothing is made again once the phase `is_over`.
        """
        micro_batch = self._micro_batch.pop(key, 0)
        if end.outcome != Outcome.OUT_OF_MEMORY or is_over or run in self._done:
            return False
        if not self._context.give_way(micro_batch):
            return False
        self._done.add(run)
        return True
