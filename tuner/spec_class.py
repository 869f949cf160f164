"""What a user's class says of itself, read from its source: nothing of the user's is imported where jobs are submitted.

`parameters` in the class body names what its model takes, in the notation of `search`: a plain value is a default, a
range or choices are searched unless the job says otherwise. Those of the training loop are there anyway.

    class Digits:
        parameters = {"width": {"low": 32, "high": 256, "log": True, "int": True}, "dropout": 0.1}

What the source does not show (a class imported from elsewhere, methods of a base class in another file) is left to the
import, which happens where the trials run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.command import IDENTIFIER
from tuner.jobspec import Fixed, UserCode
from tuner.spec_own import MAX_NAME_CHARS, MAX_PARAMETERS, RESERVED
from tuner.spec_problems import BadValue, Notes, kind, quoted
from tuner.spec_ranges import SEARCH_KEYS, Entry
from tuner.spec_values import AnyValue, read_value
from workloads.manifest import Manifest, ParameterInfo
from workloads.parameters import DROPOUT, FOCAL_GAMMA, LABEL_SMOOTHING, loop_parameters
from workloads.user import METHODS

MAX_SOURCE_BYTES = 4 << 20
FIELD = "workload.python"
EXAMPLE = 'parameters = {"width": 64}'
DEFAULT_SEARCH: Mapping[str, object] = {
    "lr": {"low": 1e-5, "high": 0.1, "log": True},
    "batch_size": {"choices": [16, 32, 64, 128, 256]},
    "weight_decay": {"low": 1e-5, "high": 0.3, "log": True, "or_zero": True},
}
DEFAULT_BASELINE: Mapping[str, object] = {"lr": 1e-3, "batch_size": 64, "weight_decay": 0.01}
_KNOWN = {info.name: info for info in (*loop_parameters().values(), DROPOUT, LABEL_SMOOTHING, FOCAL_GAMMA)}
_SUMMARY = "A parameter of the user's own class."

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definition(code: UserCode) -> tuple[Definition, ast.Module] | None:
    """Where the source defines `code.target`, and the whole file; None where that cannot be seen without the import."""
    if code.target is None:
        return None
    where, _, name = code.target.rpartition(":")
    try:
        path = _source_file(Path(code.folder), where)
        if path is None or path.stat().st_size > MAX_SOURCE_BYTES:
            return None
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # the import says it better
    found = [node for node in tree.body if isinstance(node, Definition) and node.name == name]
    return (found[-1], tree) if found else None


def _source_file(folder: Path, where: str) -> Path | None:
    if where.endswith(".py"):
        return folder / where
    module = folder.joinpath(*where.split("."))
    candidates = (module.with_name(f"{module.name}.py"), module / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def is_function(code: UserCode) -> bool:
    """Whether the source shows that the code is a function."""
    found = definition(code)
    return found is not None and not isinstance(found[0], ast.ClassDef)


def is_class(code: UserCode) -> bool:
    """Whether the source shows that the code is a class, for which x5tune owns the loop."""
    found = definition(code)
    return found is not None and isinstance(found[0], ast.ClassDef)


def read_class(notes: Notes, code: UserCode) -> Manifest | None:
    """What the class declares; None for a function and a command, where the source does not show it, or on refusal."""
    found = definition(code)
    if found is None or not isinstance(found[0], ast.ClassDef):
        return None
    return class_manifest(notes, ClassSource.of(found[0], found[1]))


@dataclass(frozen=True, slots=True)
class ClassSource:
    """A class and those of its bases that are in the same file, the nearest first; `is_whole` if those are all."""

    name: str
    bodies: tuple[ast.ClassDef, ...]
    is_whole: bool

    @staticmethod
    def of(node: ast.ClassDef, tree: ast.Module) -> ClassSource:
        classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
        bodies, is_whole, rest = list[ast.ClassDef](), True, [node]
        while rest:
            each = rest.pop(0)
            bodies.append(each)
            is_whole = is_whole and not each.decorator_list and not each.keywords
            for base in each.bases:
                known = classes.get(base.id) if isinstance(base, ast.Name) else None
                is_object = isinstance(base, ast.Name) and base.id == "object"
                is_whole = is_whole and (is_object or known is not None)
                if known is not None and known not in bodies:
                    rest.append(known)
        return ClassSource(node.name, tuple(bodies), is_whole)

    def names(self) -> Iterator[tuple[str, ast.expr | None]]:
        """What the class bodies define, with the expression of an assignment."""
        for body in self.bodies:
            for node in body.body:
                if isinstance(node, Definition):
                    yield node.name, None
                elif isinstance(node, ast.Assign):
                    yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
                elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id, node.value


def class_manifest(notes: Notes, source: ClassSource) -> Manifest | None:
    """What the class declares; None where its source does not show it, or where something was refused."""
    defined: dict[str, ast.expr | None] = {}
    for name, expression in source.names():
        defined.setdefault(name, expression)
    missing = [name for name in METHODS if name not in defined]
    if missing and source.is_whole:
        has = f"{source.name} has no {', '.join(missing)}"
        notes.refuse(FIELD, None, f"{has}; a class that x5tune trains needs {', '.join(METHODS)}.")
        return None
    if "parameters" not in defined and not source.is_whole:
        return None
    own = _literal(notes, source.name, defined.get("parameters"))
    if own is None:
        return None
    infos, search, start = _declared(notes, own)
    return Manifest(
        name=source.name,
        summary="",
        entry="",
        metric="",
        direction="minimize",
        metrics=(),
        parameters=loop_parameters(*infos),
        search={**{n: s for n, s in DEFAULT_SEARCH.items() if n not in start}, **search},
        baseline={**DEFAULT_BASELINE, **start},
        fidelity={},
        train_samples=0,
        data="",
        model_parameters=0,
        tokens_per_sample=1 if "tokens_per_sample" in defined or not source.is_whole else None,
    )


def _literal(notes: Notes, name: str, expression: ast.expr | None) -> Mapping[Any, Any] | None:
    if expression is None:
        return {}
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        why = f"parameters of {name} is computed, and it is read without running your code"
        notes.refuse(FIELD, None, f"{why}: write a mapping of plain values, such as {EXAMPLE}.")
        return None
    if not isinstance(value, Mapping):
        what = f"parameters of {name} must be a mapping such as {EXAMPLE}, and this is {kind(value)}"
        notes.refuse(FIELD, None, f"{what}: what your model takes, each with its default.")
        return None
    if len(value) > MAX_PARAMETERS:
        notes.refuse(FIELD, None, f"parameters of {name} has {len(value)}; at most {MAX_PARAMETERS} are allowed.")
        return None
    return value


def _declared(notes: Notes, own: Mapping[Any, Any]) -> tuple[list[ParameterInfo], dict[str, object], dict[str, object]]:
    """The parameters that the class adds or gives other defaults, what it searches by itself, and its defaults."""
    infos: list[ParameterInfo] = []
    search: dict[str, object] = {}
    start: dict[str, object] = {}
    for name, value in own.items():
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARS or not IDENTIFIER.fullmatch(name):
            notes.refuse(FIELD, None, f"{quoted(name)} in parameters cannot be a parameter's name: use an identifier.")
            continue
        if name in RESERVED:
            notes.refuse(FIELD, None, f"{name} in parameters cannot be a parameter: {RESERVED[name]}.")
            continue
        info = _KNOWN.get(name) or AnyValue(name, "number", _SUMMARY, None, nullable=True)
        infos.append(info)
        is_fixed = not isinstance(value, Mapping) or (info.keys and not any(key in value for key in SEARCH_KEYS))
        field = f"{FIELD}.parameters.{name}"
        try:
            if is_fixed:
                start[name] = read_value(info, value)
            elif Entry(notes, field, info, value, Fixed(None), isinstance(info, AnyValue)).read() is not None:
                search[name] = value
        except BadValue as bad:
            notes.refuse_bad(field, value, bad)
    return infos, search, start
