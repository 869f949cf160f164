"""Job specifications as text: YAML or JSON to a mapping, and `--set` on top of it.

YAML is read by the rules of YAML 1.2, whatever the file says: `1e-5` is a number, `010` is ten, `on`, `no` and
`2026-01-01` are text. Aliases, tags, duplicate keys and a second document are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from tuner.spec_problems import Problem, SpecError, kind, quoted

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 50
MAX_VALUES = 50_000

_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)

_PLAINER = {
    "but found another document": "A second document begins here; keep one.",
    "<stream end>": "The text ends too early: a bracket or a quote is not closed.",
    "unexpected end of stream": "The text ends too early: a quote is not closed.",
    "mapping values are not allowed": "A second ':' in one line; put the text in quotes, or start a new line.",
    "cannot start any token": "This character cannot start a value here (indent with spaces; quote text like '@x').",
}


class SpecTextError(SpecError):
    """Text that is not one YAML or JSON mapping; `line` and `column` count from 1, None when there is no place."""

    def __init__(self, source: str, message: str, line: int | None = None, column: int | None = None) -> None:
        place = source if line is None else f"{source}, line {line}, column {column}"
        super().__init__([Problem("", None, f"{place}: {message}")])
        self.source = source
        self.line = line
        self.column = column


def load_text(text: str, source: str) -> dict[str, object]:
    """The specification in `text`; `source` names it in errors, usually the file. Raises `SpecTextError`."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise SpecTextError(source, "is larger than 1 MiB; a job specification is a page or two of text.")
    value = _load(text, source)
    if value is None:
        raise SpecTextError(source, "is empty; the least that works is a line such as: workload: digits-cnn")
    if not isinstance(value, dict):
        raise SpecTextError(source, f"must hold a mapping such as workload: digits-cnn, and this is {kind(value)}.")
    return value


def apply_set(spec: Mapping[str, object], assignment: str) -> dict[str, object]:
    """A copy of `spec` with `search.lr.high=0.1` applied; the value is read as YAML, but for a pattern or a path under
    `metrics`, which is taken as it stands. Raises `SpecTextError`.

    Mappings on the way that are missing or null are created.
    """
    source = f"--set {quoted(assignment)}"
    path, equals, text = assignment.partition("=")
    if not equals:
        raise SpecTextError(source, "has no '='; write it like search.lr.high=0.1")
    keys = path.strip().split(".")
    if not all(key and key == key.strip() for key in keys):
        raise SpecTextError(source, "needs names joined by single dots before '=', like search.lr.high=0.1")
    changed = dict(spec)
    here: dict[str, object] = changed
    for depth, key in enumerate(keys[:-1], start=1):
        inner = here.get(key)
        if inner is not None and not isinstance(inner, Mapping):
            name = ".".join(keys[:depth])
            given = f"{name} is {quoted(inner)}, not a mapping"
            raise SpecTextError(source, f"cannot be applied: {given}; replace it whole with {name}={{...}}")
        copy: dict[str, object] = {} if inner is None else dict(inner)
        here[key] = copy
        here = copy
    here[keys[-1]] = text.strip() if _is_plain_text(keys, text.strip()) else _load(text, source)
    return changed


def _is_plain_text(keys: list[str], text: str) -> bool:
    """Whether the value is text as it stands: a pattern and a path with `{run_dir}` are full of YAML."""
    return keys[0] == "metrics" and len(keys) > 1 and text not in ("", "null", "~") and text[0] not in ("'", '"')


def _load(text: str, source: str) -> Any:
    """The value in `text`: JSON when it is JSON, else YAML."""
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        try:
            return json.loads(text.lstrip("\ufeff"), object_pairs_hook=lambda pairs: _unique(pairs, source))
        except (ValueError, RecursionError):
            pass  # flow-style YAML looks like JSON; its parser also says where it is wrong
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.reader.ReaderError as error:
        raise SpecTextError(
            source, f"has a character that YAML does not allow: U+{_code(error.character):04X}."
        ) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = _sentence(error.problem or error.context or "is not YAML")
        if mark is None:
            raise SpecTextError(source, message) from error
        raise SpecTextError(source, message, mark.line + 1, mark.column + 1) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecTextError(source, "is not YAML that can be read.") from error


def _code(character: int | str | bytes) -> int:
    return character if isinstance(character, int) else character[0] if isinstance(character, bytes) else ord(character)


def _unique(pairs: list[tuple[str, object]], source: str) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for key, value in pairs:
        if key in mapping:
            raise SpecTextError(source, f"has the key {quoted(key)} twice in one mapping; keep one.")
        mapping[key] = value
    return mapping


def _sentence(problem: str) -> str:
    """PyYAML's word for what is wrong, or ours where its is not one for users."""
    for theirs, ours in _PLAINER.items():
        if theirs in problem:
            return ours
    return f"{problem[0].upper()}{problem[1:].rstrip('.')}."


class _Loader(yaml.SafeLoader):
    """Plain values only: text, numbers, booleans, null, lists, and mappings with unique text keys."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as PyYAML declares it
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            message = "aliases and anchors (* and &) are not allowed; write the value out"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        self._values += 1
        if self._values > MAX_VALUES:  # PyYAML takes 12 s for a list of one MiB
            message = f"more than {MAX_VALUES} values"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.composer.ComposerError(None, None, message, event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002 - always deep
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                message = f"the key {quoted(key)} is not text; put it in quotes"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            if key in mapping:
                message = f"the key {quoted(key)} is given twice in one mapping; keep one"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=True)
        return mapping

    def construct_number(self, node: Any) -> int | float:
        text = self.construct_scalar(node)
        if _INT.fullmatch(text):
            try:
                return int(text)
            except ValueError:
                return float("inf") if not text.startswith("-") else float("-inf")
        lowered = text.lower()
        return float(lowered.replace(".inf", "inf").replace(".nan", "nan"))

    def construct_truth(self, node: Any) -> bool:
        return str(self.construct_scalar(node)).lower() == "true"

    def construct_text(self, node: Any) -> str:
        return str(self.construct_scalar(node))

    def construct_list(self, node: Any) -> list[Any]:
        return self.construct_sequence(node, deep=True)

    def construct_nothing(self, node: Any) -> None:
        self.construct_scalar(node)

    def refuse_tag(self, node: Any) -> None:
        message = f"the tag {quoted(node.tag)} is not allowed; write plain values"
        raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)


_TAG = "tag:yaml.org,2002:"
_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(rf"(?:{_INT.pattern})$"), list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(rf"(?:{_FLOAT.pattern})$"), list("-+.0123456789"))
_Loader.add_constructor(f"{_TAG}bool", _Loader.construct_truth)
_Loader.add_constructor(f"{_TAG}null", _Loader.construct_nothing)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_number)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_number)
_Loader.add_constructor(f"{_TAG}str", _Loader.construct_text)
_Loader.add_constructor(f"{_TAG}seq", _Loader.construct_list)
_Loader.add_constructor(f"{_TAG}map", _Loader.construct_mapping)
_Loader.add_constructor(None, _Loader.refuse_tag)
