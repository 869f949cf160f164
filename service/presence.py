"""Which runners are dead: each holds a lock on a file in the home folder, which the kernel lets go when it dies.

A dead runner's jobs need not wait for their leases then: the next runner on the same home takes them up at once.
Runners elsewhere are not seen; theirs expire.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def present(folder: Path, runner_id: str) -> Iterator[None]:
    """Hold the lock of a living runner."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / runner_id
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def bury_dead(folder: Path, bury: Callable[[str], None]) -> None:
    """Call `bury` with the id of every runner that has died without a word; each is forgotten when it returns."""
    for path in sorted(folder.glob("*")):
        with contextlib.suppress(FileNotFoundError), path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            bury(path.name)
            path.unlink(missing_ok=True)
