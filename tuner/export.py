"""A recipe as text to paste into a trainer: YAML, JSON, command-line arguments or environment variables."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from tuner.errors import TunerError

PLANNED = ("hf", "lightning", "accelerate", "deepspeed", "torchrun")


class ExportError(TunerError):
    """A format that there is not (yet)."""


def export(
    parameters: Mapping[str, Any],
    derived: Mapping[str, Any],
    format: str,  # noqa: A002 - the word that users see
    *,
    context: Mapping[str, object],
) -> str:
    """The recipe in `format` (yaml, json, args or env), ending in a newline. Raises `ExportError`.

    `context` says what the reader should know (recipe, status, evidence): comments in YAML, an object in JSON, left out
    elsewhere. `derived` values join the parameters and take the place of one of the same name, as a measured
    `loss_scale` does of "auto"; only JSON keeps them apart. A loss scale that the job has no parameter for is left out:
    the user's own code would not know it. Numbers read back exactly.
    """
    write = _FORMATS.get(format)
    if write is None:
        if format in PLANNED:
            raise ExportError(f"The format {format} is not available yet; use one of {', '.join(FORMATS)}.")
        raise ExportError(f"There is no format {format[:50]!r}; use one of {', '.join(FORMATS)}.")
    known = {name: value for name, value in derived.items() if name != "loss_scale" or name in parameters}
    return write(parameters, known, context)


def _yaml(parameters: Mapping[str, Any], derived: Mapping[str, Any], context: Mapping[str, object]) -> str:
    header = "".join(f"# {_one_line(name)}: {_one_line(value)}\n" for name, value in context.items())
    own = {name: value for name, value in parameters.items() if name not in derived}
    body = "".join(_yaml_block(block) for block in (own, derived) if block)
    return header + (body or "{}\n")


def _yaml_block(values: Mapping[str, Any]) -> str:
    return yaml.dump(dict(values), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)


def _json(parameters: Mapping[str, Any], derived: Mapping[str, Any], context: Mapping[str, object]) -> str:
    content = {**context, "parameters": dict(parameters), "derived": dict(derived)}
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=str) + "\n"


def _args(parameters: Mapping[str, Any], derived: Mapping[str, Any], _: Mapping[str, object]) -> str:
    """One line. Null is left out; a boolean is `--name` or `--no-name`, as in argparse.BooleanOptionalAction."""
    words: list[str] = []
    for name, value in {**parameters, **derived}.items():
        option = name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif (text := _text(value)).startswith("-"):
            words.append(f"--{option}={text}")  # argparse takes a separate "-1e-05" for an option
        else:
            words += [f"--{option}", text]
    return shlex.join(words) + "\n"


def _env(parameters: Mapping[str, Any], derived: Mapping[str, Any], _: Mapping[str, object]) -> str:
    """One `X5TUNE_NAME=value` a line. Null is empty, booleans are true and false."""
    values = {**parameters, **derived}
    return "".join(f"X5TUNE_{name.upper()}={shlex.quote(_text(value))}\n" for name, value in values.items())


def _text(value: Any) -> str:
    """`value` as one word: text as it is, null as nothing, numbers exactly, everything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _one_line(value: object) -> str:
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]+", " ", str(value))


class _Dumper(yaml.SafeDumper):
    """Writes 1e-05 as 1.0e-05, which is a number by the rules of YAML 1.1 too, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True

    def represent_exact(self, number: float) -> yaml.ScalarNode:
        text = repr(number)
        if "e" in text and "." not in text:
            text = text.replace("e", ".0e")
        return self.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _Dumper.represent_exact)

_FORMATS: Mapping[str, Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, object]], str]] = {
    "yaml": _yaml,
    "json": _json,
    "args": _args,
    "env": _env,
}
FORMATS = tuple(_FORMATS)
