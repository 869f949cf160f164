"""A trial's health as people read it: gradients, updates, clipping, the loss scale, waiting, noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from x5tune import wording
from x5tune.shapes import Trial
from x5tune.tables import plain_table

Words = Callable[[float], str]

COLUMNS: tuple[tuple[str, str, Words], ...] = (
    ("grad_norm", "gradient norm", wording.number),
    ("update_ratio", "update/weight", lambda value: f"{value:.1e}"),
    ("clip_share", "clipped", wording.percent),
    ("norm_jumps", "jumps", lambda value: f"{value:.0f}"),
    ("loss_scale", "loss scale", wording.number),
    ("skipped_steps", "skipped", lambda value: f"{value:.0f}"),
    ("data_wait", "data wait", wording.percent),
    ("noise_scale", "critical batch", lambda value: f"{value:.0f}"),
)


def health_table(trials: Sequence[Trial]) -> Table:
    """A line a trial; columns that none of them has are left out. Below, what was remarked on each."""
    shown = [column for column in COLUMNS if any(_number(trial["health"], column[0]) is not None for trial in trials)]
    table = plain_table("#", "outcome", *(title for _, title, _ in shown), "remarks", numeric=[t for _, t, _ in shown],
                        folds=("remarks",))  # fmt: skip
    for trial in trials:
        cells = [Text(_cell(trial["health"], name, words)) for name, _, words in shown]
        outcome = wording.words(trial["outcome"] or trial["state"])
        table.add_row(str(trial["number"]), Text(outcome), *cells, Text("; ".join(remarks(trial))))
    return table


def activations_table(seen: Mapping[str, Any]) -> Table:
    """A line a layer, then one a call of attention."""
    table = plain_table("activations", "rms", "zeros", "dead units", numeric=("rms", "zeros", "dead units"))
    for name, layer in seen.get("layers", {}).items():
        shares = (
            wording.NOTHING if layer.get(key) is None else wording.percent(layer[key]) for key in ("zeros", "dead")
        )
        table.add_row(Text(wording.one_line(name)), Text(wording.number(layer.get("rms"))), *map(Text, shares))
    for place, call in enumerate(seen.get("attention", [])):
        entropy = wording.NOTHING if call.get("entropy") is None else wording.percent(call["entropy"])
        told = f"entropy {entropy}, largest logit {wording.number(call.get('max_logit'))}"
        table.add_row(Text(f"attention {place}: {told}"), Text(""), Text(""), Text(""))
    return table


def health_line(trial: Trial) -> str:
    """`gradient norm 0.41, update/weight 1.2e-03, clipped 3 %`; empty where nothing is known."""
    known = [(title, _cell(trial["health"], name, words)) for name, title, words in COLUMNS]
    return ", ".join([*(f"{title} {value}" for title, value in known if value != wording.NOTHING), *remarks(trial)])


def remarks(trial: Trial) -> list[str]:
    """What the run said of itself in words: its notes, and what is wrong with its loss scale."""
    health = trial["health"]
    notes = [health[name] for name in trial["warnings"] if isinstance(health.get(name), str)]
    scaling = health.get("loss_scaling")
    verdict = scaling.get("verdict") if isinstance(scaling, Mapping) else None
    return [wording.one_line(text) for text in (*notes, verdict) if text]


def _cell(health: Mapping[str, Any], name: str, words: Words) -> str:
    value = _number(health, name)
    return wording.NOTHING if value is None else words(value)


def _number(health: Mapping[str, Any], name: str) -> float | None:
    value = health.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
