"""What is compared between runs of the user's own code, and where its metrics are read."""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePosixPath

import regex

from tuner.jobspec import MetricSource, Objective
from tuner.spec_problems import kind, nearest, quoted
from tuner.spec_section import Section
from workloads.contract import PROGRESS, Fidelity
from workloads.manifest import Direction

DEFAULT_METRIC = "val_loss"
MAX_METRIC_CHARS = 200
MAX_PATTERN_CHARS = 2000
_HIGHER = frozenset(
    ("acc", "accuracy", "f1", "auc", "auroc", "bleu", "rouge", "map", "mrr", "ndcg", "recall", "precision", "iou",
     "miou", "dice", "r2", "psnr", "ssim", "reward", "score", "top")
)  # fmt: skip
_LOWER = frozenset(
    ("loss", "error", "err", "perplexity", "ppl", "mse", "rmse", "mae", "nll", "bpb", "bpc", "wer", "cer", "fid")
)
GROUPS = {"steps": "step", "tokens": "tokens", "epochs": "epoch"}
"""The group that a pattern needs for an axis; the others have another way to be known."""
_USUAL_FORM = r"step (?P<step>\d+).*val_loss[= :]+(?P<val_loss>\S+)"


def usual_direction(metric: str) -> Direction | None:
    """Which way is better as far as the name says, None when it says nothing (or both)."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    words |= {word.rstrip("0123456789") for word in words}
    is_higher, is_lower = bool(words & _HIGHER), bool(words & _LOWER)
    if is_higher == is_lower:
        return None
    return "maximize" if is_higher else "minimize"


def read_own_objective(top: Section, directions: tuple[Direction, ...], source: MetricSource | None) -> Objective:
    """Any metric that the code may report; what is left out follows from `source` and from the metric's name."""
    section = top.section("objective", ("metric", "direction"))
    metric = _metric(section) if section.has("metric") else _obvious_metric(top, source)
    direction = section.option("direction", directions)
    usual = usual_direction(metric)
    if direction is None and usual is not None:
        direction = usual
    elif direction is None and not section.has("direction"):
        message = f"is missing: the name {quoted(metric)} does not say which way is better; say minimize or maximize."
        top.notes.refuse("objective.direction", None, message)
    elif direction is not None and usual is not None and direction != usual:
        better = f"{quoted(metric)} looks better the {'higher' if usual == 'maximize' else 'lower'}"
        top.notes.warn("objective.direction", f"{better}, and this job does the opposite: {direction}.")
    return Objective(metric, direction or "minimize")


def _obvious_metric(top: Section, source: MetricSource | None) -> str:
    """The one metric that the pattern reads, or `val_loss`."""
    if source is None or source.stdout is None or not top.notes.is_clean("metrics"):
        return DEFAULT_METRIC
    groups = regex.compile(source.stdout).groupindex
    metrics: list[str] = [group for group in groups if group not in (*PROGRESS, "name", "value")]
    if {"name", "value"} <= groups.keys() or DEFAULT_METRIC in metrics or not metrics:
        return DEFAULT_METRIC
    if len(metrics) > 1:
        message = f"is missing: the pattern reads {', '.join(metrics)}; say which of them is compared."
        top.notes.refuse("objective.metric", None, message)
    return metrics[0]


def _metric(section: Section) -> str:
    given = section.get("metric")
    if not isinstance(given, str):
        section.refuse("metric", f"must be the name that your code reports, and this is {kind(given)}.")
    elif not given.strip() or len(given) > MAX_METRIC_CHARS:
        section.refuse("metric", f"must have 1 to {MAX_METRIC_CHARS} characters.")
    elif any(unicodedata.category(character) in ("Cc", "Cs") for character in given):
        section.refuse("metric", "must not contain control characters such as line breaks or tabs.")
    elif given in PROGRESS:
        section.refuse("metric", f"{given} says how far a run is and cannot be what is compared.")
    else:
        return given
    return DEFAULT_METRIC


FILES = ("jsonl", "csv", "tensorboard")
RUN_DIR = "{run_dir}"
MAX_PATH_CHARS = 1000


def read_metrics(top: Section) -> MetricSource | None:
    """Where an unchanged script's metrics are; whether they can be read is checked by `check_metrics`."""
    section = top.section("metrics", ("stdout", *FILES))
    given = [key for key in ("stdout", *FILES) if section.has(key)]
    if len(given) > 1:
        top.notes.refuse("metrics", top.get("metrics"), f"names {' and '.join(given)}; metrics come from one of them.")
    elif given == ["stdout"]:
        pattern = _pattern(section)
        return None if pattern is None else MetricSource(stdout=pattern)
    elif given:
        path = _path(section, given[0])
        return None if path is None else MetricSource(**{given[0]: path})
    elif top.has("metrics"):
        example = f"{{stdout: '{_USUAL_FORM}'}}"
        top.notes.refuse("metrics", top.get("metrics"), f"needs stdout, {', '.join(FILES)}; such as {example}.")
    return None


def _path(section: Section, key: str) -> str | None:
    """A path within the run's own folder: runs go on side by side, and none may read what another has written."""
    given = section.get(key)
    usual = "{run_dir}/runs" if key == "tensorboard" else f"{{run_dir}}/metrics.{key}"
    remedy = f"write {usual} here, and hand {{run_dir}} to the command"
    if not isinstance(given, str):
        section.refuse(key, f"must be a path such as {usual}, and this is {kind(given)}.")
        return None
    inside = given.removeprefix(RUN_DIR)
    path = PurePosixPath(inside.lstrip("/") if inside != given else given)
    if len(given) > MAX_PATH_CHARS or any(unicodedata.category(character) in ("Cc", "Cs") for character in given):
        section.refuse(key, f"must be a path of at most {MAX_PATH_CHARS} characters, none of them a control character.")
    elif inside != given and inside and not inside.startswith("/"):
        section.refuse(key, f"needs a / after {{run_dir}}: {remedy}.")
    elif path.is_absolute() or ".." in path.parts or given.startswith("~"):
        section.refuse(key, f"must lie in the run's own folder, because runs go on side by side: {remedy}.")
    elif set(str(path)) & set("{}"):
        section.refuse(key, f"takes no placeholder but {{run_dir}}: {remedy}.")
    elif str(path) == "." and key != "tensorboard":
        section.refuse(key, f"must name a file: {remedy}.")
    else:
        return str(path)
    return None


def says_epochs_only(source: MetricSource | None) -> bool:
    """Whether a script's output tells the epoch and nothing finer."""
    groups = regex.compile(source.stdout).groupindex if source is not None and source.stdout is not None else {}
    return "epoch" in groups and "step" not in groups and "samples" not in groups


def _pattern(section: Section) -> str | None:
    given = section.get("stdout")
    if not isinstance(given, str):
        section.refuse("stdout", f"must be a regular expression, and this is {kind(given)}; put it in single quotes.")
        return None
    if len(given) > MAX_PATTERN_CHARS:
        section.refuse("stdout", f"has {len(given)} characters; at most {MAX_PATTERN_CHARS} are allowed.")
        return None
    try:
        regex.compile(given)
    except (regex.error, OverflowError, RecursionError, Warning) as error:  # a warning where those are errors
        section.refuse("stdout", f"is not a regular expression: {str(error)[:200] or type(error).__name__}.")
        return None
    return given


def check_metrics(top: Section, source: MetricSource, metric: str, fidelity: Fidelity, has_batch_size: bool) -> None:
    """Refuse a regular expression that cannot give the metric, or cannot give how far the run is."""
    where, pattern = "metrics.stdout", source.stdout
    if pattern is None:
        return
    groups = regex.compile(pattern).groupindex
    wanted = MetricSource.group_name(metric)
    if not ("name" in groups and "value" in groups) and wanted not in groups:
        hint = nearest(wanted, groups)
        both = (
            f"(?P<{wanted}>...), or the two groups (?P<name>...) and (?P<value>...)"
            if wanted.isidentifier()
            else ("the two groups (?P<name>...) and (?P<value>...)")
        )
        top.notes.refuse(where, pattern, f"has no group for {quoted(metric)}: write {both}.{hint}")
    if not groups.keys() & {"step", "samples", "epoch"}:
        progress = "(?P<step>...), (?P<samples>...) or (?P<epoch>...)"
        top.notes.refuse(where, pattern, f"has no group for how far the run is: write {progress}.")
    elif fidelity.axis in GROUPS and (group := GROUPS[fidelity.axis]) not in groups:
        top.notes.refuse(where, pattern, f"has no group (?P<{group}>...), which the {fidelity.axis} axis needs.")
    elif fidelity.axis == "samples" and "samples" not in groups and "step" not in groups:
        top.notes.refuse(where, pattern, "says epochs only: use fidelity: {axis: epochs}, or write (?P<step>...).")
    elif fidelity.axis == "samples" and not has_batch_size and "samples" not in groups:
        remedy = "write (?P<samples>...), or give batch_size in search, or use the steps axis"
        top.notes.refuse(where, pattern, f"says no samples, and without batch_size nothing else does: {remedy}.")
