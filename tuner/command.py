"""The command of a user's own training: a template whose {placeholders} are filled one argument at a time.

Never a shell: what a value says stays inside its own argument. `{{` and `}}` are literal braces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tuner.errors import TunerError

IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
_SCRIPT_SUFFIXES = (".py", ".sh", ".bash", ".jl", ".r", ".pl", ".rb", ".js")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_MAX_LABEL_CHARS = 200


class TemplateError(TunerError):
    """An argument whose braces are no placeholder, or a placeholder without a value."""


def placeholders(argument: str) -> list[str]:
    """The names in the {placeholders} of one argument, in their order. Raises TemplateError for stray braces."""
    return [name for _, name in _tokens(argument) if name is not None]


def fill(argv: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The command with every placeholder replaced by its value, each argument staying one argument.

    Numbers are written exactly, null as nothing, booleans as true and false, lists and mappings as JSON. Raises
    TemplateError for a placeholder that is not in `values`, and for stray braces.
    """
    return [_fill_argument(argument, values) for argument in argv]


def without(argv: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The command without the arguments whose placeholders have no value: parameters that do not exist this time.

    Of `--width {width}` both go: an argument that is nothing but the placeholder takes an option before it along.
    """
    kept: list[str] = []
    was_option = False
    for argument in argv:
        names = placeholders(argument)
        if all(name in values for name in names):
            kept.append(argument)
            was_option = not names and re.fullmatch(r"--?[A-Za-z][^=]*", argument) is not None
            continue
        if was_option and argument == f"{{{names[0]}}}":
            kept.pop()
        was_option = False
    return kept


def as_text(value: Any) -> str:
    """`value` as an argument of its own or a part of one."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def command_label(argv: Sequence[str]) -> str:
    """The program and its script, without folders: `python train.py`, `python -m pkg.train`, `run.sh`."""
    program = PurePath(argv[0]).name or argv[0]
    label = " ".join((program, *_script(argv[1:])))
    return (_CONTROL.sub(" ", label).strip() or "command")[:_MAX_LABEL_CHARS]


def _script(arguments: Sequence[str]) -> tuple[str, ...]:
    for index, argument in enumerate(arguments):
        if argument == "-m" and index + 1 < len(arguments):
            return ("-m", arguments[index + 1])
        if argument.lower().endswith(_SCRIPT_SUFFIXES) and not argument.startswith("-"):
            return (PurePath(argument).name,)
    if arguments and re.fullmatch(r"[A-Za-z0-9_.:/]+", arguments[0]):
        return (arguments[0],)
    return ()


def _fill_argument(argument: str, values: Mapping[str, Any]) -> str:
    parts = []
    for text, name in _tokens(argument):
        if name is None:
            parts.append(text)
        elif name in values:
            parts.append(as_text(values[name]))
        else:
            raise TemplateError(f"{{{name}}} in {argument!r} has no value; there are: {', '.join(values) or 'none'}")
    return "".join(parts)


def _tokens(argument: str) -> Iterator[tuple[str, str | None]]:
    """The argument in pieces: literal text and None, or a placeholder and its name."""
    end = 0
    for token in _TOKEN.finditer(argument):
        yield argument[end : token.start()], None
        end = token.end()
        text = token.group()
        if text in ("{{", "}}"):
            yield text[0], None
        elif IDENTIFIER.fullmatch(text[1:-1]):
            yield text, text[1:-1]
        else:
            shown = text if len(text) <= 40 else text[:39] + "…"
            raise TemplateError(
                f"{shown!r} is no placeholder such as {{lr}}; write braces that stay as they are twice: {{{{ and }}}}"
            )
    yield argument[end:], None
