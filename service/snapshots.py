"""Copies of users' folders, made as a job is submitted, so that what runs tonight is what was there this morning.

A copy leaves out `.git` and what the .gitignore files say. A link is copied as a link: one that points into the folder
points into the copy, any other to what it pointed to; nothing outside the folder is copied. Pipes, sockets and devices
are left out. Not protected: a file that is written while it is copied.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from pathspec import GitIgnoreSpec

from service.errors import FieldError, ProblemError, invalid

MAX_FILES = 50_000
MAX_DEPTH = 100
MAX_IGNORE_BYTES = 1 << 20
ORPHAN_S = 3600.0
FIELD = "snapshot"


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing to copy: its place in the folder, and what `lstat` says of it."""

    place: PurePath
    status: os.stat_result


class Rules:
    """What the .gitignore files from the repository's root down to the folder, and within it, leave out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._specs: dict[Path, GitIgnoreSpec | None] = {}
        self._found: dict[PurePath, list[tuple[Path, GitIgnoreSpec]]] = {}
        root = next((parent for parent in (folder, *folder.parents) if (parent / ".git").exists()), folder)
        self._above = [parent for parent in (folder, *folder.parents) if parent == root or root in parent.parents]

    def ignores(self, place: PurePath, is_folder: bool) -> bool:
        """Whether what is at `place` within the folder is left out; the nearest file that has an opinion decides."""
        path = self._folder / place
        for base, spec in self._nearest_first(place.parent):
            name = path.relative_to(base).as_posix() + ("/" if is_folder else "")
            decided = spec.check_file(name).include
            if decided is not None:
                return decided
        return False

    def _nearest_first(self, inside: PurePath) -> list[tuple[Path, GitIgnoreSpec]]:
        """The files with rules for what lies in the folder `inside`, with where they are."""
        if inside not in self._found:
            own = [self._folder / each for each in (inside, *inside.parents) if each != PurePath()]
            specs = [(base, self._spec(base)) for base in (*own, *self._above)]
            self._found[inside] = [(base, spec) for base, spec in specs if spec is not None]
        return self._found[inside]

    def _spec(self, base: Path) -> GitIgnoreSpec | None:
        if base not in self._specs:
            lines: list[str] = []
            with suppress(OSError):
                path = base / ".gitignore"
                if path.is_file() and path.stat().st_size <= MAX_IGNORE_BYTES:
                    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            self._specs[base] = _parsed(lines) if lines else None
        return self._specs[base]


def _parsed(lines: list[str]) -> GitIgnoreSpec:
    """The rules in these lines; what is no pattern is passed over, as git does."""
    patterns: list[Any] = []
    for line in lines:
        with suppress(ValueError, re.error):
            patterns += GitIgnoreSpec.from_lines([line]).patterns
    return GitIgnoreSpec(patterns)


def check(folder: Path, max_bytes: int, home: Path) -> list[Entry]:
    """What a copy of `folder` would hold, but for our own `home`; raises a 422 for what is too much or unreadable."""
    found: list[Entry] = []
    sizes: Counter[str] = Counter()
    try:
        for entry in _walk(folder, PurePath(), Rules(folder), home):
            found.append(entry)
            if stat.S_ISREG(entry.status.st_mode):
                sizes[entry.place.parts[0]] += entry.status.st_size
            if len(found) > MAX_FILES:
                raise refused(f"the folder holds more than {MAX_FILES} files that .gitignore does not leave out")
            if len(entry.place.parts) > MAX_DEPTH:
                raise refused(f"{str(entry.place)[:60]!r}… lies more than {MAX_DEPTH} folders deep")
    except OSError as error:
        raise refused(f"{_shown(folder, error)} cannot be read: {error.strerror}") from error
    total = sum(sizes.values())
    if total > max_bytes:
        largest = ", ".join(f"{_printable(name)} {size >> 20} MiB" for name, size in sizes.most_common(3))
        message = f"the folder holds {total >> 20} MiB, and {max_bytes >> 20} are allowed (X5TUNE_SNAPSHOT_MIB)"
        raise refused(f"{message}; the largest: {largest}. Name what the training only reads in a .gitignore file")
    return found


def take(folder: Path, copy: Path, max_bytes: int, home: Path) -> None:
    """Copy `folder` to `copy`, which must not exist; all of it, or nothing and a ProblemError."""
    entries = check(folder, max_bytes, home)
    part = copy.with_name(f"{copy.name}.part")
    try:
        part.mkdir(mode=0o700, parents=True)
        for entry in entries:
            _copy(folder, part, entry)
        part.rename(copy)
    except OSError as error:
        raise refused(f"{_shown(folder, error)} cannot be copied: {error.strerror}") from error
    finally:
        remove(part)


def remove(copy: Path) -> None:
    """Remove a copy, whatever the modes of its folders."""
    with suppress(OSError):
        for root, _, _ in os.walk(copy):
            Path(root).chmod(0o700)
    shutil.rmtree(copy, ignore_errors=True)


def is_left(copy: Path, older_than_s: float = ORPHAN_S) -> bool:
    """Whether a copy without a job is an old one; a young one may belong to a submission under way."""
    try:
        return time.time() - copy.stat().st_ctime > older_than_s
    except OSError:
        return False


def sweep(copies: Path, is_known: Callable[[str], bool], older_than_s: float = ORPHAN_S) -> None:
    """Remove what a death between a copy and its job has left."""
    with suppress(FileNotFoundError):
        for copy in copies.iterdir():
            if is_left(copy, older_than_s) and not is_known(copy.name):
                remove(copy)


def require_in_copy(workload: dict[str, Any], copy: Path) -> None:
    """Refuse a copy that lacks what the job starts from: .gitignore left it out."""
    command = workload.get("command") or []
    named = [command[0]] if command and "/" in command[0] else []
    named += [word for word in command[1:2] if word.endswith(".py")]
    target = str(workload.get("python") or "").rpartition(":")[0]
    named += [target] if target.endswith(".py") else []
    for name in named:
        if "{" not in name and not PurePath(name).is_absolute() and not os.path.lexists(copy / name):
            raise refused(
                f"{name!r} is not in the copy of the folder: .gitignore leaves it out. Name it by its full path"
            )


def refused(message: str) -> ProblemError:
    return invalid([FieldError(FIELD, True, f"{message}.")])


def _walk(folder: Path, place: PurePath, rules: Rules, home: Path) -> Iterator[Entry]:
    with os.scandir(folder / place) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        below = place / entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if entry.name == ".git" or folder / below == home or rules.ignores(below, is_folder):
            continue
        with suppress(FileNotFoundError):  # gone meanwhile
            yield Entry(below, entry.stat(follow_symlinks=False))
            if is_folder:
                yield from _walk(folder, below, rules, home)


def _copy(folder: Path, copy: Path, entry: Entry) -> None:
    source, target, mode = folder / entry.place, copy / entry.place, entry.status.st_mode
    with suppress(FileNotFoundError):  # gone meanwhile
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o700)
        elif stat.S_ISLNK(mode):
            target.symlink_to(_link(folder, source))
        elif stat.S_ISREG(mode):
            shutil.copy2(source, target, follow_symlinks=False)


def _link(folder: Path, source: Path) -> str:
    """Where the copy of a link points to."""
    points_to = Path(os.path.normpath(source.parent / source.readlink()))
    if points_to.is_relative_to(folder):
        return os.path.relpath(points_to, source.parent)
    return str(points_to)


def _printable(name: str) -> str:
    """A file's name as text that any encoding can hold, on one line."""
    return name if name.isprintable() else repr(name)


def _shown(folder: Path, error: OSError) -> str:
    name = str(error.filename or folder)
    return repr(name.removeprefix(f"{folder}/")[:200])
