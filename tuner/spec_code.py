"""The `workload` key for the user's own training: a Python function or a command, in a folder that both sides see."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path, PurePath

from tuner.command import IDENTIFIER
from tuner.jobspec import UserCode
from tuner.spec_problems import BadValue, Notes, kind, quoted
from tuner.spec_section import Section

MAX_ARGUMENTS = 1000
MAX_ARGUMENT_CHARS = 32_768
MAX_TARGET_CHARS = 1000
SHELL_WORDS = ("|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>&1")
EXAMPLE = "such as train.py:train or package.module:train"


def read_code(notes: Notes, workload: Mapping[str, object]) -> UserCode | None:
    """The user's code, None when something is refused. Looks into the folder: what is named there has to be there."""
    section = Section.open(notes, "workload", workload, ("python", "command", "folder"))
    before = len(notes.problems)
    folder = _folder(section)
    if section.has("python") and section.has("command"):
        section.refuse("command", "cannot be combined with python: give one of the two.")
    elif section.has("python"):
        target = _target(section)
        if target is not None and folder is not None:
            _check_target(section, folder, target)
        if len(notes.problems) == before and folder and target:
            return UserCode(folder, target)
    elif section.has("command"):
        argv = _argv(section)
        if folder and argv:
            _check_program(section, folder, argv[0])
        if len(notes.problems) == before and folder and argv:
            _advise(section, folder, argv)
            return UserCode(folder, argv=argv)
    else:
        message = f'needs python ({EXAMPLE}) or command (such as [python, train.py, --lr, "{{lr}}"]).'
        notes.refuse("workload", workload, message)
    return None


def _folder(section: Section) -> str | None:
    given = section.get("folder")
    if given is None:
        where = section.field("folder")
        section.notes.refuse(where, None, "is missing: give the absolute path of the folder that holds your code.")
    elif not isinstance(given, str):
        section.refuse("folder", f"must be the absolute path of a folder, and this is {kind(given)}.")
    elif not _is_plain(given):
        section.refuse("folder", "has a character that a path cannot hold.")
    elif not PurePath(given).is_absolute():
        section.refuse("folder", "must be an absolute path, one that starts with /.")
    else:
        try:
            if Path(given).is_dir():
                return given
            there = "is a file; give the folder that holds it" if Path(given).exists() else "does not exist here"
            section.refuse("folder", f"{there}. The service and its runners have to see the same folder.")
        except OSError as error:
            section.refuse("folder", f"cannot be looked into: {error.strerror}.")
    return None


def _target(section: Section) -> str | None:
    try:
        return _read_target(section.get("python"))
    except BadValue as bad:
        section.refuse("python", bad.message)
        return None


def _read_target(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue(f"must be text {EXAMPLE}, and this is {kind(value)}.")
    where, colon, function = value.rpartition(":")
    if not colon:
        raise BadValue(f"needs a file or module, a colon and a function, {EXAMPLE}.")
    if not _is_dotted(function):
        raise BadValue(f"{quoted(function)} after the colon is no function's name; write it {EXAMPLE}.")
    if len(value) > MAX_TARGET_CHARS or not _is_plain(value):
        raise BadValue(f"is no path that can be used; write it {EXAMPLE}.")
    if where.endswith(".py"):
        path = PurePath(where)
        if path.is_absolute() or ".." in path.parts:
            raise BadValue("must name a file inside the folder, by its path from there.")
    elif not _is_dotted(where):
        raise BadValue(f"{quoted(where)} is neither a file that ends in .py nor a module; write it {EXAMPLE}.")
    return value


def _check_target(section: Section, folder: str, target: str) -> None:
    where = target.rpartition(":")[0]
    try:
        if where.endswith(".py"):
            if not Path(folder, where).is_file():
                section.refuse("python", f"There is no file {quoted(where)} in the folder {quoted(folder)}.")
            return
        package, *rest = where.split(".")
        if not _is_module(Path(folder, package)):
            message = f"{quoted(package)} is not in the folder, so it has to be installed in the Python that runs it."
            section.notes.warn("workload.python", message)
        elif not _is_module(Path(folder, package, *rest)):
            section.refuse("python", f"There is no module {quoted(where)} in the folder {quoted(folder)}.")
    except OSError as error:
        section.refuse("python", f"cannot be looked for in the folder: {error.strerror}.")


def _is_module(path: Path) -> bool:
    return path.is_dir() or path.with_name(f"{path.name}.py").is_file() or any(path.parent.glob(f"{path.name}.*.so"))


def _argv(section: Section) -> tuple[str, ...] | None:
    given = section.get("command")
    if isinstance(given, str):
        section.refuse("command", f"must be a list, one text for each argument: no shell is used.{_as_list(given)}")
        return None
    if not isinstance(given, list | tuple):
        section.refuse("command", f"must be a list such as [python, train.py], and this is {kind(given)}.")
        return None
    if not given:
        section.refuse("command", "is empty; give the program and its arguments, such as [python, train.py].")
        return None
    if len(given) > MAX_ARGUMENTS:
        section.refuse("command", f"has {len(given)} arguments; at most {MAX_ARGUMENTS} are allowed.")
        return None
    argv: list[str] = []
    for index, argument in enumerate(given):
        try:
            argv.append(_argument(argument, index))
        except BadValue as bad:
            section.notes.refuse(f"workload.command.{index}", argument, bad.message)
            return None
    return tuple(argv)


def _argument(value: object, index: int) -> str:
    """Text as it is; a number as it is written, because YAML reads `--epochs, 3` so."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadValue(f"must be text, and this is {kind(value)}; put it in quotes.")
    if not isinstance(value, str):
        if not (abs(value) < 2**63 and math.isfinite(value)):
            raise BadValue("is no number that can be an argument; put it in quotes.")
        value = repr(value)
    if len(value) > MAX_ARGUMENT_CHARS:
        raise BadValue(f"has {len(value)} characters; at most {MAX_ARGUMENT_CHARS} are allowed.")
    if not _is_plain(value):
        raise BadValue("has a character that an argument cannot hold.")
    if index == 0 and not value.strip():
        raise BadValue("is empty; the first argument is the program, such as python.")
    return value


def _check_program(section: Section, folder: str, program: str) -> None:
    """Refuse a program whose path leads nowhere; where one without a path is found, only the runner knows."""
    where, remedy = "workload.command.0", "name the interpreter first, such as [python, train.py]"
    if set(program) & set("{}"):
        return
    if "/" not in program:
        ours = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        if shutil.which(program, path=ours) is None:
            message = f"There is no {quoted(program)} on the path here ({ours[:200]}); the runner needs one on its own."
            section.notes.warn(where, message)
        return
    path = Path(folder, program)
    try:
        if not path.is_file():
            there = "is a folder" if path.is_dir() else "does not exist"
            section.notes.refuse(where, program, f"The program {quoted(str(path))} {there}. The runner has to find it.")
        elif not os.access(path, os.X_OK):
            section.notes.refuse(where, program, f"The program {quoted(str(path))} may not be executed; {remedy}.")
    except OSError as error:
        section.notes.refuse(where, program, f"The program {quoted(str(path))} cannot be looked for: {error.strerror}.")


def _as_list(text: str) -> str:
    try:
        words = shlex.split(text) if len(text) <= 200 else []
    except ValueError:
        words = []
    listed = ", ".join(f'"{word}"' if any(c in word for c in "{}[],:# ") else word for word in words)
    return f" Write [{listed}]." if words else " Write it like [python, train.py]."


def _advise(section: Section, folder: str, argv: tuple[str, ...]) -> None:
    """Warn about what is probably a slip; whether it is one only the command itself knows."""
    operators = [word for word in argv[1:] if word in SHELL_WORDS]
    if operators:
        message = f"{operators[0]} is passed on as an argument, because no shell is used; for one, run [bash, -c, ...]."
        section.notes.warn("workload.command", message)
    script = next((word for word in argv if word.endswith(".py") and not set(word) & set("{}=")), None)
    try:
        if script is not None and not Path(folder, script).exists():
            message = f"There is no {quoted(script)} in the folder {quoted(folder)}."
            section.notes.warn("workload.command", message)
    except OSError:
        pass  # the command says it better than we could


def _is_dotted(name: str) -> bool:
    return all(IDENTIFIER.fullmatch(part) for part in name.split("."))


def _is_plain(text: str) -> bool:
    return not any(character == "\0" or unicodedata.category(character) == "Cs" for character in text)
