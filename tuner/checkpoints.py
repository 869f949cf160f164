"""The folders in which paused trials leave their state: `<job's>/<trial>/<probe that left it>`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

UNFINISHED = (".tmp", ".new")
"""Endings of what is not whole yet: every save writes under such a name first, then moves."""
PROOF = -1
"""Among the trials what a memory proof saves and reads back."""


class Checkpoints:
    """Those of one job. The folder is the runner's and the probes', so they have to share a file system.

    Without a folder (None) nothing can be kept. What cannot be removed now stays; who sweeps the parent folder later
    removes it with the job's.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def is_kept(self) -> bool:
        """Whether there is a place for checkpoints at all."""
        return self._folder is not None

    def place(self, trial: int, probe: int) -> str | None:
        """Where this probe of a trial leaves its state if it is paused; None where nothing is kept."""
        return None if self._folder is None else str(self._folder / str(trial) / str(probe))

    def is_whole(self, trial: int, probe: int) -> bool:
        """Whether the probe has left a state there that was written to its end."""
        place = self.place(trial, probe)
        if place is None or not Path(place).is_dir():
            return False
        return any(not name.endswith(UNFINISHED) for name in os.listdir(place))  # noqa: PTH208 - names only

    def keep_only(self, trial: int, probe: int) -> None:
        """The states that earlier probes of the trial have left are of no use any more."""
        if self._folder is not None and (own := self._folder / str(trial)).is_dir():
            for entry in own.iterdir():
                if entry.name != str(probe):
                    shutil.rmtree(entry, ignore_errors=True)

    def size_bytes(self, trial: int) -> int:
        """What the trial's states take up."""
        if self._folder is None:
            return 0
        files = (Path(root, name) for root, _, names in os.walk(self._folder / str(trial)) for name in names)
        return sum(file.lstat().st_blocks * 512 for file in files if file.exists())

    def drop(self, trial: int) -> None:
        """The trial is over."""
        if self._folder is not None:
            shutil.rmtree(self._folder / str(trial), ignore_errors=True)

    def drop_others(self, trials: Collection[int]) -> None:
        """Only these trials are paused: what others have left, somebody died before he could remove it."""
        if self._folder is not None and self._folder.is_dir():
            for entry in self._folder.iterdir():
                if entry.name not in map(str, trials):
                    shutil.rmtree(entry, ignore_errors=True)

    def drop_all(self) -> None:
        """The job is over."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
