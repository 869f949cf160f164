"""One trial as Rich renderables: how it went, what it was run with, what the hardware did meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from x5tune import wording
from x5tune.health_tables import activations_table
from x5tune.shapes import Job, Trial
from x5tune.tables import pairs, plain_table, styled

LOG_LINES = 20
READ_AS: Mapping[str, Callable[[float], str]] = {
    "bytes": wording.mebibytes,
    "bytes_per_s": lambda value: f"{wording.mebibytes(value)}/s",
    "share": wording.percent,
    "utilisation": wording.percent,
    "w": lambda value: f"{value:.0f} W",
    "c": lambda value: f"{value:.0f} °C",
    "mhz": lambda value: f"{value:.0f} MHz",
    "s": lambda value: f"{value:.1f} s",
}


def trial_details(job: Job, trial: Trial) -> RenderableType:
    status = trial["outcome"] or trial["state"]
    head = Text(f"Trial {trial['number']} of {wording.handle(job['id'])}  ", "bold")
    head.append_text(styled(wording.words(status), status))
    rows: list[tuple[str, RenderableType]] = []
    if trial["reason"]:
        rows.append(("reason", wording.one_line(trial["reason"])))
    rows.append((wording.metric(job), _value(trial)))
    if trial["curve"]:
        rows.append(("curve", _curve(trial)))
    rows.append(("parameters", wording.assignments(trial["parameters"])))
    if trial["derived"]:
        rows.append(("derived", wording.assignments(trial["derived"])))
    rows.append(("ran", _probes(trial)))
    rows += [("energy", _energy(trial["telemetry"]))] if trial["telemetry"] else []
    health = {name: value for name, value in trial["health"].items() if name != "activations"}
    rows += [("health", wording.assignments(health))] if health else []
    rows += [("warnings", wording.assignments(trial["warnings"]))] if trial["warnings"] else []
    parts: list[RenderableType] = [head, pairs(rows)]
    if trial["health"].get("activations"):
        parts += [Text(""), activations_table(trial["health"]["activations"])]
    if trial["telemetry"]:
        parts += [Text(""), _telemetry(trial["telemetry"])]
    if trial["log_tail"]:
        parts += [Text(""), Text("Output, its end", "bold"), Text(_end_of(trial["log_tail"]), "dim")]
    return Group(*parts)


def _value(trial: Trial) -> str:
    text = wording.measured(trial["value"], trial["value_kind"])
    notes = ["baseline"] if trial["is_baseline"] else []
    notes += [f"again for trial {trial['retry_of']}"] if trial["retry_of"] is not None else []
    return f"{text} ({', '.join(notes)})" if notes else text


def _curve(trial: Trial) -> str:
    shown = trial["curve"] if len(trial["curve"]) <= 12 else [*trial["curve"][:4], *trial["curve"][-4:]]
    values = [f"{point['step']}: {wording.measured(point['value'], point['value_kind'])}" for point in shown]
    if len(shown) < len(trial["curve"]):
        values.insert(4, "…")
    return "by step " + ", ".join(values)


def _probes(trial: Trial) -> str:
    if not trial["probes"]:
        return "not yet" if trial["state"] != "ended" else "not at all"
    seconds = sum(float(probe.get("seconds") or 0.0) for probe in trial["probes"])
    device = wording.one_line(trial["probes"][-1].get("device") or "")
    return f"{seconds:.1f} s in {wording.plural(len(trial['probes']), 'probe')} on {device}"


def _energy(telemetry: Mapping[str, Any]) -> str:
    joules = telemetry.get("energy_j")
    stamp = ", simulated" if telemetry.get("is_simulated") else ""
    if joules is None:
        return f"not known: {wording.words(str(telemetry.get('energy_reason') or 'no answer'))}{stamp}"
    how = {"counter": "the device's counter", "power": "power over time", "rapl": "the processor's share, RAPL"}
    return f"{wording.number(joules / 3600)} Wh ({how.get(str(telemetry.get('energy_source')), 'measured')}{stamp})"


def _telemetry(telemetry: Mapping[str, Any]) -> RenderableType:
    """Every quantity, in the units that its name ends with; then what there was none of, and why."""
    table = plain_table("measured", "mean", "least", "most", numeric=("mean", "least", "most"))
    for name, told in telemetry.get("quantities", {}).items():
        table.add_row(*(Text(each) for each in (wording.one_line(name), *(_as(name, told[key]) for key in KEYS))))
    for name, total in telemetry.get("counted", {}).items():
        table.add_row(Text(wording.one_line(name)), Text(f"{_as(name, total)} in all"), Text(""), Text(""))
    notes: list[tuple[str, RenderableType]] = [
        (wording.one_line(name), f"{wording.percent(share)} of the time")
        for name, share in telemetry.get("throttled", {}).items()
    ]
    missing = [f"{wording.one_line(name)}: {wording.words(why)}" for name, why in telemetry.get("reasons", {}).items()]
    parts: list[RenderableType] = [table]
    parts += [pairs([("throttled by", ""), *notes])] if notes else []
    parts += [Text(f"Not measured: {', '.join(missing)}", "dim")] if missing else []
    return Group(*parts)


KEYS = ("mean", "min", "max")


def _as(name: str, value: float) -> str:
    quantity = name.rpartition(".")[2]
    for ending, read in READ_AS.items():
        if quantity == ending or quantity.endswith(f"_{ending}"):
            return read(value)
    return wording.number(value)


def _end_of(text: str) -> str:
    return "\n".join(wording.clean(line) for line in text.rstrip().splitlines()[-LOG_LINES:])
