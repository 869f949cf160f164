"""`diagnose`: why a workload does not train, found out here without a service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from x5tune import completing, failing, screen, wording
from x5tune.errors import UsageError
from x5tune.options import Assignments, Token, Url
from x5tune.shapes import Job, Trial

if TYPE_CHECKING:
    from tuner.jobspec import ResolvedJob

STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red", "skipped": "dim"}
SPEC_FILES = (".yaml", ".yml", ".json")
ANY_METRIC = "evaluated"
"""What the objective of a class is called that is diagnosed by its name alone."""
_NOTHING: Sequence[dict[str, Any]] = ()


class CannotDiagnose(UsageError):  # noqa: N818 - the word that users see
    """The workload cannot be looked into from here."""


def diagnose(
    name: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD|FILE|JOB",
            help="A built-in, a class (train.py:Digits), a specification's file, or a job.",
            autocompletion=completing.workloads,
            show_default=False,
        ),
    ],
    *,
    assignments: Assignments = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="About how long it may take.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdicts as JSON.")] = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Find out why a workload does not train: its data, loss, gradients, learning, evaluation and a short run.

    Runs here, with the baseline's parameters; only a job is fetched from the service. The exit code is 0 when nothing
    is wrong, warnings or not, and 1 when there is a problem.

    Example: x5tune diagnose byte-lm --set baseline.lr=10
    """
    from tuner.diagnosing import CannotDiagnoseError, diagnose_job

    job, known = _job(name, assignments or [], url, token)
    try:
        verdicts = [*diagnose_job(job, seconds, names_metric=job.objective.metric != ANY_METRIC), *known]
    except CannotDiagnoseError as error:
        if known is _NOTHING:
            raise CannotDiagnose(str(error)) from error
        inside: dict[str, Any] = {
            "code": "inside",
            "level": "skipped",
            "message": str(error),
            "evidence": {},
            "action": None,
        }
        verdicts = [*known, inside]
    wrong = [each for level in ("problem", "warning") for each in verdicts if each["level"] == level]
    verdict = wrong[0]["code"] if wrong else "healthy"
    if as_json:
        screen.write_json({"workload": job.workload, "verdict": verdict, "checks": verdicts})
    else:
        _show(job.workload, verdicts, wrong)
    if any(each["level"] == "problem" for each in verdicts):
        raise typer.Exit(failing.FAILED)


def _job(
    name: str, assignments: Sequence[str], url: str | None, token: str | None
) -> tuple[ResolvedJob, Sequence[dict[str, Any]]]:
    """The job, and what is known of it already: `_NOTHING`, or of one that has run what its trials say."""
    from tuner.jobspec import ResolvedJob
    from tuner.spec import SpecError, resolve
    from workloads.catalog import MANIFESTS
    from x5tune.specfile import SpecFileError, read_spec

    is_file = name == "-" or name.endswith(SPEC_FILES) or Path(name).is_file()
    try:
        if is_file:
            return resolve(read_spec(name, assignments=assignments)).job, _NOTHING
        if ":" in name or name in MANIFESTS:
            return resolve(_with_metric(read_spec(None, workload=name, assignments=assignments))).job, _NOTHING
    except SpecError as error:
        raise SpecFileError(str(error)) from error
    from x5tune.naming import NoSuchJob, find_job

    with screen.talk(url, token, as_json=False) as client:
        try:
            found = find_job(client, name)
        except NoSuchJob as error:
            built_in = f"no built-in workload ({', '.join(MANIFESTS)})"
            error.add_note(
                f"{name!r} is no file and {built_in} either; a class is named with its file: train.py:Digits."
            )
            raise
        trials = list(client.trials(found["id"]))
    resolved = ResolvedJob.from_json(found["resolved"])
    if assignments:
        raise SpecFileError("--set changes a workload or a file; a job is diagnosed as it is.")
    return resolved, [*map(_told, found["diagnosis"]), *_of_trials(resolved, found, trials)]


def _with_metric(spec: dict[str, Any]) -> dict[str, Any]:
    """A class by its name alone: its metric, and how long a run is, do not matter here unless they are given."""
    if isinstance(spec.get("workload"), Mapping):
        spec.setdefault("objective", {"metric": ANY_METRIC, "direction": "minimize"})
        spec.setdefault("fidelity", {"axis": "steps", "max": 400})
        spec.setdefault("search", {"batch_size": 32})
        spec.setdefault("budget", {"trials": 1})
    return spec


def _of_trials(job: ResolvedJob, found: Job, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """What the trials' reports say, and whether the best is on the edge of the space."""
    from tuner.edges import edge_of_space
    from tuner.report_checks import from_reports

    curves = [
        (each["parameters"], [point["value"] for point in each["curve"] if point["value"] is not None])
        for each in trials
    ]
    findings = from_reports(curves, job.objective.metric, job.objective.direction)
    best = next((each for each in trials if found["best"] and each["number"] == found["best"]["trial"]), None)
    edge = edge_of_space(job.space, best["parameters"]) if best else None
    known = {each["code"] for each in found["diagnosis"]}
    return [_told(asdict(each)) for each in (*findings, edge) if each is not None and each.code not in known]


def _told(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {"level": "warning", **finding}


def _show(workload: str, verdicts: Sequence[Mapping[str, Any]], wrong: Sequence[Mapping[str, Any]]) -> None:
    """A line a check, what to do below it, and the sum of it all."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for each in verdicts:
        style = STYLES[each["level"]]
        code = wording.words(each["code"])
        grid.add_row(Text(each["level"], style), Text(code), Text(wording.one_line(each["message"])))
        if each["action"]:
            grid.add_row("", "", Text(f"→ {wording.one_line(each['action'])}", "bold"))
    name = wording.one_line(workload)
    summed = f"{name}: {wording.words(wrong[0]['code'])}." if wrong else f"{name} is healthy."
    more = f" {wording.plural(len(wrong) - 1, 'more finding')} may follow from it." if len(wrong) > 1 else ""
    screen.show(grid, "", Text(summed + more, "bold"))
