"""Values as people read them. Everything that came over the network goes through `clean` before a terminal sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from x5tune.shapes import Job, Measured, Recipe

NOTHING = "–"
SHORT_ID = 13  # the part of an id that holds its millisecond

STOP_REASONS: Mapping[str, str] = {
    "trials": "all trials of the budget have run",
    "full_runs": "the budget's full runs are used up",
    "seconds": "the budget's time is used up",
    "device_hours": "the budget's device hours are used up",
    "energy": "the budget's energy is used up",
    "cost": "the budget's money is used up",
    "converged": "more trials were not expected to find anything better",
    "space_exhausted": "every configuration in the search space has been tried",
    "failures": "its trials fail",
    "cancelled": "it was cancelled",
    "error": "of an error",
}

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(value: object) -> str:
    """`value` as text without anything that moves a cursor, changes a colour or reverses a line."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(value))


def one_line(value: object) -> str:
    return " ".join(clean(value).split())


def number(value: float | None) -> str:
    """Four significant digits, or all of those before the point; whole numbers as they are."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return str(value)
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


def rates(found: Mapping[str, Any]) -> str:
    """What the learning rate range test came to."""
    if found["state"] == "skipped":
        return f"not tested: {one_line(found['reason'] or '')}"
    tried = f"of {len(found['rates'])} rates, {plural(found['steps'], 'step')} each"
    if found["low"] is None:
        return f"{tried}, none lowers the loss"
    above = "" if found["diverges_at"] is None else f"; diverges at {brief(found['diverges_at'])} and above"
    trains = f"lr from {brief(found['low'])} to {brief(found['high'])} trains"
    next_one = f"; {brief(found['tries'])} is tried first" if found.get("tries") else ""
    return f"{trains} ({tried}, {brief(found['best'])} best){above}{next_one}"


def horizon(fidelity: Mapping[str, Any]) -> str:
    """How long a full run is, as far as it is known."""
    if fidelity.get("max") is None:
        return f"as many {fidelity.get('axis')} as the first run takes"
    return f"{number(fidelity['max'])} {fidelity.get('axis')}"


def exact(value: Any) -> str:
    """A parameter's value with all its digits, in the notation of the job specification."""
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def brief(value: Any) -> str:
    """A parameter's value for a table."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e6 else f"{value:.3g}"
    text = exact(value)
    return text if len(text) <= 24 else text[:23] + "…"


def measured(value: float | None, kind: str) -> str:
    return {"nan": "NaN", "+inf": "+inf", "-inf": "-inf"}.get(kind) or number(value)


def parameter(parameters: Mapping[str, Any], name: str) -> str:
    """One parameter's value for a table; nothing where it does not exist in this configuration."""
    return brief(parameters[name]) if name in parameters else NOTHING


def assignments(parameters: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """`lr=0.0055 batch_size=8`: these parameters, or all that are not null."""
    chosen = [name for name, value in parameters.items() if value is not None] if names is None else names
    return " ".join(f"{one_line(name)}={brief(parameters[name])}" for name in chosen if name in parameters)


def learnt_from(found: Sequence[Mapping[str, Any]]) -> str:
    """`83 trials of 2 earlier jobs: 0199..., 0198...`."""
    trials = sum(one["trials"] for one in found)
    jobs = "1 earlier job" if len(found) == 1 else f"{len(found)} earlier jobs"
    return f"{trials} trials of {jobs}: {', '.join(one['job'] for one in found)}"


def searched(resolved: Mapping[str, Any]) -> list[str]:
    """The names of the parameters that a resolved specification searches."""
    space = resolved.get("search") or {}
    return [name for name, value in space.items() if isinstance(value, dict) and ("low" in value or "choices" in value)]


def direction(job: Job) -> str:
    return str((job["resolved"].get("objective") or {}).get("direction", "minimize"))


def metric(job: Job) -> str:
    return one_line((job["resolved"].get("objective") or {}).get("metric", "value"))


def against(value: float | None, baseline: float | None, way: str) -> str:
    """How a value compares with the baseline's: "12.3 % better"; empty where that cannot be said."""
    if value is None or baseline is None:
        return ""
    gain = baseline - value if way == "minimize" else value - baseline
    if gain == 0:
        return "equal"
    word = "better" if gain > 0 else "worse"
    if baseline == 0:
        return f"{abs(gain):.4g} {word}"
    return f"{percent(abs(gain / baseline))} {word}"


def percent(share: float) -> str:
    return f"{share * 100:.3g} %" if share < 9.995 else f"{share * 100:.0f} %"


def best_so_far(best: Measured | None, baseline: Measured | None, way: str) -> str:
    if best is None or best["value"] is None:
        return ""
    if baseline is not None and best["trial"] == baseline["trial"]:
        return "the baseline itself"
    return against(best["value"], None if baseline is None else baseline["value"], way)


def difference(recipe: Recipe) -> str:
    """The recipe's improvement: "+1.605 (91.6 %), 1.59 to 1.62"."""
    gain = recipe["difference"]
    if gain is None:
        return NOTHING
    base = recipe["baseline_value"]
    share = f" ({percent(abs(gain / base))})" if base else ""
    interval = recipe["interval"]
    return f"{gain:+.4g}{share}" + (f", {interval[0]:.4g} to {interval[1]:.4g}" if interval else "")


def outcomes(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Outcomes and how many trials ended so, good ones first."""
    order = ["ok", "pruned", "diverged", "out_of_memory", "timed_out", "crashed", "no_metric", "cancelled", "lost"]
    rank = {name: index for index, name in enumerate(order)}
    return sorted(counts.items(), key=lambda item: rank.get(item[0], len(order)))


def words(name: str) -> str:
    """`out_of_memory` as words."""
    return one_line(name).replace("_", " ")


def mebibytes(count: float) -> str:
    """`24.0 MiB`, `1.5 GiB`."""
    mib = count / (1 << 20)
    return f"{mib:.1f} MiB" if mib < 1024 else f"{mib / 1024:.1f} GiB"


def duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def about(seconds: float) -> str:
    """A duration that is a guess: one unit."""
    if seconds < 50:
        return f"{max(5, round(seconds / 5) * 5)} s"
    if seconds < 3300:
        return f"{max(1, round(seconds / 60))} min"
    if seconds < 86400:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"


def moment(text: str) -> datetime:
    """An RFC 3339 time of the service."""
    return datetime.fromisoformat(text)


def local_time(text: str) -> str:
    """A time of the service on this machine's clock."""
    when = moment(text).astimezone()
    today = datetime.now(UTC).astimezone().date()
    return when.strftime("%H:%M:%S") if when.date() == today else when.strftime("%Y-%m-%d %H:%M")


def ago(text: str, now: datetime | None = None) -> str:
    return f"{about(((now or datetime.now(UTC)) - moment(text)).total_seconds())} ago"


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """For each id a prefix that tells it from the others: `SHORT_ID` characters where that is enough."""
    length = SHORT_ID
    while length < 36 and len({each[:length] for each in ids}) < len(set(ids)):
        length += 1
    return {each: each[:length] for each in ids}


def handle(job_id: str) -> str:
    """What to type for a job."""
    return one_line(job_id[:SHORT_ID])


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def left_out(entries: list[dict[str, Any]] | None) -> str:
    """The batch sizes that are not searched because they cannot be made, to go on a sentence."""
    if not entries:
        return ""
    spans = [one["batch_size"] for one in entries]
    sizes = [f"{span['low']} to {span['high']}" if isinstance(span, dict) else str(span) for span in spans]
    return f"; batch sizes left out because they cannot be made: {', '.join(sizes)}"
