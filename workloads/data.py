"""Data sets prepared once from files that are on the machine already, and cached; nothing is downloaded.

Safe against another process preparing the same data (each writes under its own name, then moves) and against a cache
file that is damaged (it is made anew). Not a defence against someone with write access to the cache folder, so the
fallback folder is refused unless it belongs to this user.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Arrays: TypeAlias = Mapping[str, Array]

SPLIT_SEED = 20240229


class DataUnavailable(RuntimeError):  # noqa: N818 - says what is the matter
    """The files that a data set is made from are not on this machine."""


def folder() -> Path:
    """Where prepared data are kept: X5TUNE_DATA, else a private folder of this user among the temporary files."""
    if configured := os.environ.get("X5TUNE_DATA"):
        path = Path(configured)
        path.mkdir(parents=True, exist_ok=True)
        return path
    path = Path(tempfile.gettempdir()) / f"x5tune-data-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.is_symlink() or path.stat().st_uid != os.getuid():
        raise DataUnavailable(f"{path} does not belong to this user; set X5TUNE_DATA to a folder of your own")
    return path


def cached(name: str, key: str, build: Callable[[], Arrays]) -> Arrays:
    """The arrays that `build` makes, from the cache if they are there; `key` names the version of source and code.

    A cache that cannot be written costs the time of building, nothing else.
    """
    try:
        path = folder() / f"{name}-{key}.npz"
    except OSError:
        return build()
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        arrays = build()
    with contextlib.suppress(OSError):
        _write(path, arrays)
    return arrays


def _write(path: Path, arrays: Arrays) -> None:
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sklearn_file(name: str) -> Path:
    """A data file that scikit-learn packages, found without importing it (which takes a second and much memory)."""
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise DataUnavailable(f"{name} comes with scikit-learn; install x5tune[worker]")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / name
    if not path.is_file():
        raise DataUnavailable(f"this scikit-learn has no {path}; version 1.5 or newer has")
    return path


def fingerprint(*parts: bytes | str) -> str:
    """A short name for a version of some content."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def stratified_split(labels: Array, fractions: Sequence[float]) -> list[Array]:
    """Indices of disjoint parts that together are everything, each class in proportion; the same on every machine.

    The last part takes what rounding leaves.
    """
    generator = np.random.Generator(np.random.PCG64(SPLIT_SEED))
    parts: list[list[Array]] = [[] for _ in fractions]
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        cuts = np.floor(np.cumsum(fractions)[:-1] * len(members) + 1e-9).astype(int)
        for part, chunk in zip(parts, np.split(members, cuts), strict=True):
            part.append(chunk)
    return [np.sort(np.concatenate(part)) for part in parts]
