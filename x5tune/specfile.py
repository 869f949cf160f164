"""A job specification from what the command line was given: a file, options on top of it, a command to run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tuner.spec_problems import SpecError
from tuner.spec_text import MAX_BYTES, apply_set, load_text
from x5tune.errors import UsageError

STDIN = "-"


class SpecFileError(UsageError):
    """What was given is no specification; the message says what and where."""


def read_spec(
    file: str | None,
    *,
    workload: str | None = None,
    assignments: Sequence[str] = (),
    name: str | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """The specification to send. Raises `SpecFileError`.

    A relative `workload.folder` counts from the folder of `file` (from the current one without a file), `~` is the
    user's home, and where there is none it is that folder itself.
    """
    if command and workload:
        raise SpecFileError("Name a workload or a command after --, not both.")
    if not (file or workload or assignments or command):
        raise SpecFileError("There is nothing to submit. Name a file, or a workload: --workload digits-cnn")
    try:
        spec: dict[str, Any] = load_text(_read(file), _label(file)) if file else {}
        if command:
            spec["workload"] = {"command": list(command), "folder": str(Path.cwd())}
        if workload:
            spec["workload"] = {"python": workload, "folder": str(Path.cwd())} if ":" in workload else workload
        if name is not None:
            spec["name"] = name
        for assignment in assignments:
            spec = apply_set(spec, assignment)
    except SpecError as error:
        raise SpecFileError(str(error)) from error
    return _with_absolute_folder(spec, Path.cwd() if file in (None, STDIN) else Path(file).absolute().parent)


def read_changes(assignments: Sequence[str], name: str | None) -> dict[str, Any]:
    """What `--set` and `--name` change of a specification that the service has. Raises `SpecFileError`."""
    changes: dict[str, Any] = {} if name is None else {"name": name}
    try:
        for assignment in assignments:
            changes = apply_set(changes, assignment)
    except SpecError as error:
        raise SpecFileError(str(error)) from error
    return changes


def _with_absolute_folder(spec: dict[str, Any], base: Path) -> dict[str, Any]:
    workload = spec.get("workload")
    if not isinstance(workload, dict):
        return spec
    folder = workload.get("folder")
    if folder is None:
        return {**spec, "workload": {**workload, "folder": str(base)}}
    if not isinstance(folder, str):
        return spec  # the service says what is wrong with it
    try:
        path = base / Path(folder).expanduser()
        return {**spec, "workload": {**workload, "folder": str(path.resolve())}}
    except (RuntimeError, ValueError, OSError) as error:
        raise SpecFileError(f"workload.folder: {folder!r} is not a folder that can be found ({error}).") from error


def _label(file: str) -> str:
    return "standard input" if file == STDIN else file


def _read(file: str) -> str:
    try:
        content = sys.stdin.buffer.read(MAX_BYTES + 1) if file == STDIN else _bytes_of(Path(file))
    except FileNotFoundError as error:
        raise SpecFileError(f"There is no file {file!r}.{_hint(file)}") from error
    except IsADirectoryError as error:
        raise SpecFileError(f"{file!r} is a folder; name the file in it.") from error
    except PermissionError as error:
        raise SpecFileError(f"{file!r} may not be read by you.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecFileError(f"{file!r} cannot be read: {reason}.") from error
    if not content.strip():
        raise SpecFileError(f"{_label(file)} is empty; the least that works is a line such as: workload: digits-cnn")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecFileError(f"{_label(file)} is not UTF-8 text (byte {error.start}).") from error


def _bytes_of(path: Path) -> bytes:
    if path.is_dir():
        raise IsADirectoryError
    with path.open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _hint(file: str) -> str:
    """A word for those who named a workload where a file belongs."""
    plain = file.replace("-", "").replace("_", "")
    return f" A built-in workload is named with an option: --workload {file}" if plain.isalnum() else ""
