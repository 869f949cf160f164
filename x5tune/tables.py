"""Answers of the service as Rich renderables. Names and messages are cleaned; nothing is taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from x5tune import wording
from x5tune.shapes import Finding, Frontier, Job, Recipe, Token, Trial, Workload

FOLDED = 30  # columns that a list of parameters needs at least to be readable when it is folded

STYLES: Mapping[str, str] = {
    "ok": "green",
    "proven": "bold green",
    "succeeded": "green",
    "recommended": "bold green",
    "pruned": "yellow",
    "provisional": "yellow",
    "paused": "yellow",
    "waiting": "yellow",
    "cancelled": "yellow",
    "no_recommendation": "yellow",
    "queued": "cyan",
    "running": "cyan",
    "phase": "bold",
    "diverged": "magenta",
    "out_of_memory": "red",
    "timed_out": "red",
    "crashed": "red",
    "no_metric": "red",
    "failed": "bold red",
    "lost": "dim",
    "log": "dim",
}


def styled(text: str, about: str) -> Text:
    return Text(text, STYLES.get(about, ""))


def plain_table(*headers: str, numeric: Iterable[str] = (), folds: Iterable[str] = ()) -> Table:
    """A table without lines, so that it can be read in a pipe too. Only the columns in `folds` give way."""
    right, soft = set(numeric), set(folds)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for header in headers:
        justify: JustifyMethod = "right" if header in right else "left"
        table.add_column(Text(header), justify=justify, overflow="fold", no_wrap=header not in soft)
    return table


def pairs(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names and what is said of them, aligned."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), Text(value, overflow="fold") if isinstance(value, str) else value)
    return grid


def natural_width(console: Console, table: Table) -> int:
    """How wide a table is when nothing in it is folded."""
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def fits(console: Console, table: Table) -> bool:
    return natural_width(console, table) <= console.width


def state_of(job: Job) -> Text:
    """`succeeded: recommended`, `running: search`, `queued`."""
    text = styled(job["state"], job["state"])
    if job["verdict"]:
        text.append(": ").append_text(styled(wording.words(job["verdict"]), job["verdict"]))
    elif job["phase"]:
        text.append(f": {wording.words(job['phase'])}")
    if job["cancel_requested"] and job["state"] == "running":
        text.append(" (cancelling)", "yellow")
    return text


def outcome_counts(counts: Mapping[str, int], running: int = 0, paused: int = 0) -> Text:
    parts = [styled(f"{count} {wording.words(name)}", name) for name, count in wording.outcomes(counts)]
    if running:
        parts.append(styled(f"{running} running", "running"))
    if paused:
        parts.append(styled(f"{paused} paused", "paused"))
    return Text(", ").join(parts) if parts else Text("none yet", "dim")


def jobs_table(jobs: Sequence[Job], console: Console) -> RenderableType:
    short = wording.short_ids([job["id"] for job in jobs])
    headers = ("id", "state", "trials", "best", "workload", "submitted", "name")
    for dropped in ((), ("submitted",), ("submitted", "workload")):
        shown = [header for header in headers if header not in dropped]
        table = plain_table(*shown, numeric=("trials", "best"), folds=("workload", "name"))
        for job in jobs:
            cells = _job_cells(job, short[job["id"]])
            if "workload" in dropped:
                cells["state"] = styled(job["state"], job["verdict"] or job["state"])
            table.add_row(*(cells[header] for header in shown))
        if fits(console, table):
            break
    return table


def _job_cells(job: Job, short: str) -> dict[str, Text]:
    done, total = job["progress"]["done"], job["progress"]["total"]
    best = job["best"]
    return {
        "id": Text(short),
        "state": state_of(job),
        "trials": Text(f"{done}/{total}" if total is not None else str(done)),
        "best": Text(wording.number(best["value"]) if best else wording.NOTHING),
        "workload": Text(wording.one_line(job["workload"])),
        "submitted": Text(wording.ago(job["created_at"])),
        "name": Text(wording.one_line(job["name"])),
    }


def job_details(job: Job, url: str, health: str = "") -> RenderableType:
    """`health` is the best trial's, in words."""
    objective, fidelity = job["resolved"].get("objective") or {}, job["resolved"].get("fidelity") or {}
    rows: list[tuple[str, RenderableType]] = [
        ("id", job["id"]),
        ("state", state_of(job)),
        ("workload", wording.one_line(job["workload"])),
        ("objective", f"{objective.get('direction', '')} {wording.metric(job)}".strip()),
        ("searches", ", ".join(map(wording.one_line, wording.searched(job["resolved"]))) or "nothing: all is fixed"),
    ]
    if fidelity:
        rows.append(("horizon", wording.horizon(fidelity)))
    rows += [("trials", _trials_line(job)), *standing(job), ("time", _times(job)), ("spent", _spend(job))]
    rows += [("memory", _memory(job["fit"], is_over=job["ended_at"] is not None))] if job["fit"] else []
    rows += [("rates", wording.rates(job["range_test"]))] if job["range_test"] else []
    rows += [("health", health)] if health else []
    if job["parent_id"]:
        rows.append(("fork of", job["parent_id"]))
    if job["schedule_id"]:
        rows.append(("schedule", job["schedule_id"]))
    if job["learnt_from"]:
        rows.append(("learnt from", wording.learnt_from(job["learnt_from"])))
    if job["stop_reason"]:
        rows.append(("stopped", stop_reason(job)))
    if job["waiting_for"]:
        rows.append(("waiting", styled(wording.one_line(job["waiting_for"]["message"]), "waiting")))
    if job["study"]["url"]:
        rows.append(("study", f"{url}{job['study']['url']}"))
    parts: list[RenderableType] = [Text(wording.one_line(job["name"]), "bold"), pairs(rows)]
    return Group(*parts, *findings(job))


def standing(job: Job) -> list[tuple[str, RenderableType]]:
    """The baseline and the best trial, where they are known."""
    rows: list[tuple[str, RenderableType]] = []
    if job["baseline"]:
        base = job["baseline"]
        value = wording.measured(base["value"], base["value_kind"])
        rows.append(("baseline", f"{value} (trial {base['trial']})" if value != wording.NOTHING else "no value"))
    if job["best"]:
        gain = wording.best_so_far(job["best"], job["baseline"], wording.direction(job))
        text = f"{wording.number(job['best']['value'])} (trial {job['best']['trial']})"
        is_alone = job["baseline"] is not None and job["best"]["trial"] == job["baseline"]["trial"]
        if is_alone and job["outcomes"].get("ok") == 1 and sum(job["outcomes"].values()) > 1:
            gain += "; no other trial ran to its end"
        rows.append(("best", text + (f", {gain}" if gain else "")))
    return rows


def _trials_line(job: Job) -> Text:
    done, total = job["progress"]["done"], job["progress"]["total"]
    text = Text(f"{done} of {total}" if total is not None else str(done))
    return text.append(": ").append_text(outcome_counts(job["outcomes"])) if job["outcomes"] else text


def _memory(fit: dict[str, Any], *, is_over: bool) -> str:
    """The largest micro-batch that fits, or how far phase `fit` has come."""
    if fit["reason"]:
        return f"{fit['state']}: {wording.one_line(fit['reason'])}"
    if fit["micro_batch"] is None:
        return "not measured to its end" if is_over else "being measured"
    of = f"{wording.mebibytes(fit['peak_bytes'])} of {wording.mebibytes(fit['limit_bytes'])}"
    how = "; activations are computed again" if fit.get("checkpointing") else ""
    return f"micro-batches up to {fit['micro_batch']} fit, proven: {of}{how}{wording.left_out(fit.get('left_out'))}"


def _times(job: Job) -> str:
    text = f"submitted {wording.local_time(job['created_at'])}"
    if job["started_at"] is None:
        return text
    text += f", started {wording.local_time(job['started_at'])}"
    if job["ended_at"] is None:
        return text
    seconds = (wording.moment(job["ended_at"]) - wording.moment(job["started_at"])).total_seconds()
    return f"{text}, took {wording.duration(seconds)}"


def _spend(job: Job) -> str:
    spend = job["spend"]
    parts = [f"{wording.duration(spend['device_seconds'])} of device time"]
    if spend["energy_kwh"] is not None:
        note = f" ({wording.one_line(spend['energy_reason'])})" if spend["energy_reason"] else ""
        parts.append(f"{wording.number(spend['energy_kwh'])} kWh{note}")
    if spend["cost"] is not None:
        parts.append(f"cost {spend['cost']:.2f}")
    return ", ".join(parts)


def stop_reason(job: Job) -> str:
    reason = job["stop_reason"] or ""
    return wording.STOP_REASONS.get(reason, wording.words(reason))


def findings(job: Job) -> list[RenderableType]:
    """The error and the diagnosis: what was seen and what to do."""
    parts: list[RenderableType] = []
    told = {each["message"] for each in job["diagnosis"]}
    if job["error"] and job["error"] not in told:
        parts.append(Text(f"Error: {wording.clean(job['error'])}", "red"))
    parts.extend(_finding(each) for each in job["diagnosis"])
    return [Text(""), *parts] if parts else []


def _finding(finding: Finding) -> Text:
    text = Text(wording.one_line(finding["message"]))
    if finding["action"]:
        text.append("\n  → ", "bold").append(wording.one_line(finding["action"]))
    return text


def recipe_table(recipes: Sequence[Recipe], names: Sequence[str] | None, console: Console) -> RenderableType:
    """Rank, status, value, baseline, difference with its interval, and these parameters (None: those not null)."""
    headers, numeric = ("#", "status", "value", "baseline", "difference", "trial"), ("#", "value", "baseline", "trial")
    narrow, wide = (
        plain_table(*headers, numeric=numeric),
        plain_table(*headers, "parameters", numeric=numeric, folds=("parameters",)),
    )
    for recipe in recipes:
        cells = _recipe_cells(recipe)
        narrow.add_row(*cells)
        wide.add_row(*cells, Text(wording.assignments(recipe["parameters"], names)))
    if fits(console, wide) or natural_width(console, narrow) + FOLDED <= console.width:
        return wide
    return Group(*(part for recipe in recipes for part in _recipe_block(recipe, names)))


def _recipe_block(recipe: Recipe, names: Sequence[str] | None) -> list[RenderableType]:
    head = Text(f"{recipe['rank']}  ", "bold").append_text(styled(recipe["status"], recipe["status"]))
    head.append(f"  {wording.number(recipe['value'])}  (trial {recipe['trial']})")
    body = f"{wording.difference(recipe)}\nbaseline {wording.number(recipe['baseline_value'])}"
    body += f"\n{wording.assignments(recipe['parameters'], names)}"
    return [head, Padding(Text(body), (0, 0, 0, 3))]


def _recipe_cells(recipe: Recipe) -> list[Text]:
    return [
        Text(str(recipe["rank"])),
        styled(recipe["status"], recipe["status"]),
        Text(wording.number(recipe["value"])),
        Text(wording.number(recipe["baseline_value"])),
        Text(wording.difference(recipe)),
        Text(str(recipe["trial"])),
    ]


def evidence(recipe: Recipe) -> str:
    """What stands behind a recipe, as a sentence."""
    if recipe["status"] != "proven":
        return "Provisional: measured in the search only, not confirmed on fresh seeds."
    seeds = f" on {wording.plural(recipe['seeds'], 'fresh seed')}" if recipe["seeds"] else " on fresh seeds"
    sure = (
        f", at {recipe['confidence'] * 100:g} % confidence" if recipe["confidence"] else ", which all came out the same"
    )
    return f"Proven: better than the baseline{seeds}{sure}."


def batch_trade(recipe: Recipe) -> str | None:
    """What the recipe's batch size costs, by the gradient noise; None where that is not known."""
    spend, batch = recipe["spend"], recipe["parameters"].get("batch_size")
    if "critical_batch" not in spend:
        return None
    pace = f", at {wording.number(spend['samples_per_s'])} samples/s" if spend.get("samples_per_s") else ""
    return (
        f"Critical batch about {spend['critical_batch']:.0f}: {batch} a step takes {spend['steps_factor']:.3g} times "
        f"the fewest steps and {spend['samples_factor']:.3g} times the fewest samples possible{pace}."
    )


def recipe_parameters(recipe: Recipe) -> Table:
    """All parameters, exact; derived ones take the place of those of the same name."""
    values = {**recipe["parameters"], **recipe["derived"]}
    return pairs((wording.one_line(name), wording.exact(value)) for name, value in values.items())


def trials_table(trials: Sequence[Trial], names: Sequence[str], console: Console) -> RenderableType:
    """Number, outcome, value, the searched parameters, seconds, reason: as many columns side by side as fit."""
    columns = [wording.one_line(name) for name in names]
    headers = ("#", "outcome", "value", *columns, "seconds")
    numeric = ("#", "value", "seconds", *columns)
    bare = plain_table(*headers, numeric=numeric)
    full = plain_table(*headers, "reason", numeric=numeric, folds=("reason",))
    for trial in trials:
        cells = [*_trial_head(trial), *(Text(wording.parameter(trial["parameters"], name)) for name in names)]
        cells.append(_trial_seconds(trial))
        bare.add_row(*cells)
        full.add_row(*cells, Text(wording.one_line(trial["reason"] or "")))
    if not fits(console, bare):
        return _narrow_trials(trials, names)
    if not any(trial["reason"] for trial in trials):
        return bare
    if fits(console, full) or natural_width(console, bare) + FOLDED <= console.width:
        return full
    return Group(bare, *_reasons(trials))


def _narrow_trials(trials: Sequence[Trial], names: Sequence[str]) -> Table:
    """The parameters, and the reason below them, in one column."""
    headers = ("#", "outcome", "value", "s", "parameters")
    table = plain_table(*headers, numeric=("#", "value", "s"), folds=("outcome", "parameters"))
    for trial in trials:
        cell = Text(wording.assignments(trial["parameters"], names))
        if trial["reason"]:
            cell.append("\n").append(wording.one_line(trial["reason"]), "dim")
        table.add_row(*_trial_head(trial), _trial_seconds(trial), cell)
    return table


def _reasons(trials: Sequence[Trial]) -> list[RenderableType]:
    """Why trials ended, below the table; of pruned ones the outcome says it all."""
    rows = [
        (str(trial["number"]), Text(wording.one_line(trial["reason"])))
        for trial in trials
        if trial["reason"] and trial["outcome"] != "pruned"
    ]
    return [Text(""), Text("Reasons", "bold"), pairs(rows)] if rows else []


def _trial_head(trial: Trial) -> list[Text]:
    status = trial["outcome"] or trial["state"]
    label = styled(wording.words(status), status)
    if trial["is_baseline"]:
        label.append(" (baseline)", "dim")
    if trial["retry_of"] is not None:
        label.append(f" (again {trial['retry_of']})", "dim")
    return [
        Text(str(trial["number"])),
        label,
        Text(wording.measured(trial["value"], trial["value_kind"])),
    ]


def _trial_seconds(trial: Trial) -> Text:
    seconds = sum(float(probe.get("seconds") or 0.0) for probe in trial["probes"])
    return Text(f"{seconds:.1f}" if trial["probes"] else wording.NOTHING)


def workloads_table(workloads: Sequence[Workload]) -> Table:
    table = plain_table("name", "objective", "what it is", folds=("what it is",))
    for each in workloads:
        table.add_row(Text(each["name"]), Text(f"{each['direction']} {each['metric']}"), Text(each["summary"]))
    return table


def frontiers_table(frontiers: Sequence[Frontier]) -> Table:
    numeric = ("limit", "micro-batch", "peak", "samples/s")
    table = plain_table("device", "precision", "activations", *numeric, numeric=numeric, folds=("device",))
    for each in frontiers:
        peak = each["peak_bytes"]
        table.add_row(
            Text(wording.one_line(each["device"])),
            Text(each["precision"]),
            Text("computed again" if each["checkpointing"] else "kept"),
            Text(wording.mebibytes(each["limit_bytes"])),
            Text(str(each["micro_batch"] or "nothing fits")),
            Text(wording.NOTHING if peak is None else wording.mebibytes(peak)),
            Text(wording.number(each["samples_per_s"])),
        )
    return table


def workload_details(workload: Workload) -> RenderableType:
    fidelity = workload["fidelity"]
    rows: list[tuple[str, RenderableType]] = [
        ("objective", f"{workload['direction']} {workload['metric']}"),
        ("metrics", ", ".join(workload["metrics"])),
        ("model", f"{workload['model_parameters']:,} parameters"),
        ("data", f"{wording.one_line(workload['data'])} {workload['train_samples']:,} training samples."),
        ("horizon", f"{fidelity.get('max')} {fidelity.get('axis')}, {fidelity.get('reports')} reports"),
        ("searches", ", ".join(workload["search"])),
    ]
    table = plain_table("parameter", "default", "searched", "what it is", folds=("searched", "what it is"))
    baseline = workload["baseline"]
    for name, info in workload["parameters"].items():
        default = baseline.get(name, info.get("default"))
        space = workload["search"].get(name)
        table.add_row(
            Text(name),
            Text(wording.brief(default)),
            Text(_range(space)),
            Text(wording.one_line(info.get("summary", ""))),
        )
    return Group(
        Text(workload["name"], "bold"), Text(wording.one_line(workload["summary"])), pairs(rows), Text(""), table
    )


def _range(space: Any) -> str:
    if not isinstance(space, dict):
        return "" if space is None else wording.brief(space)
    if "choices" in space:
        return ", ".join(wording.brief(value) for value in space["choices"])
    extra = [word for word in ("log", "int") if space.get(word)] + (["or 0"] if space.get("or_zero") else [])
    text = f"{wording.brief(space.get('low'))} to {wording.brief(space.get('high'))}"
    return f"{text} ({', '.join(extra)})" if extra else text


def tokens_table(tokens: Sequence[Token], console: Console) -> Table:
    short = wording.short_ids([token["id"] for token in tokens])
    headers = ("id", "name", "scope", "made", "last used", "expires")
    for dropped in ((), ("made",), ("made", "last used")):
        shown = [header for header in headers if header not in dropped]
        table = plain_table(*shown, folds=("name",))
        for token in tokens:
            cells = _token_cells(token, short[token["id"]])
            table.add_row(*(Text(cells[header]) for header in shown))
        if fits(console, table):
            break
    return table


def _token_cells(token: Token, short: str) -> dict[str, str]:
    return {
        "id": short,
        "name": wording.one_line(token["name"]),
        "scope": token["scope"],
        "made": wording.ago(token["created_at"]),
        "last used": wording.ago(token["last_used_at"]) if token["last_used_at"] else "never",
        "expires": wording.local_time(token["expires_at"]) if token["expires_at"] else "never",
    }
