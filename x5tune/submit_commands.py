"""`submit` and `validate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from x5tune import screen, wording
from x5tune.options import Assignments, DisplayName, JobName, Json, SpecFile, Token, Url, WorkloadName
from x5tune.shapes import DryRun, Estimate, Job, SpecWarning

if TYPE_CHECKING:
    from x5tune.client import Client

AFTER_DASHES = "x5tune.command"


class CommandAfterDashes(TyperCommand):
    """A command whose words behind `--` are another command's; they never count as its own arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own, words = list(args), list[str]()
        if "--" in own:
            at = own.index("--")
            own, words = own[:at], own[at + 1 :]
        ctx.meta[AFTER_DASHES] = words
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


def submit(
    context: typer.Context,
    file: SpecFile = None,
    *,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    name: DisplayName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it has ended.")] = False,
    idempotency_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Submitting again with the same key gives the first job.", show_default=False),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job: what to train, what to search, and how much it may take.

    A relative folder in FILE counts from FILE's own folder. Words behind `--` are a command of yours to train with:
    -- python train.py --lr {lr}

    Example: x5tune submit examples/digits.yaml --set budget.trials=12 --watch
    """
    from x5tune.specfile import read_spec

    spec = read_spec(
        file, workload=workload, assignments=assignments or (), name=name, command=context.meta[AFTER_DASHES]
    )
    with screen.talk(url, token, as_json=as_json) as client:
        _after_submission(client, client.submit(spec, idempotency_key), watch=watch, as_json=as_json)


def fork(
    job: JobName,
    *,
    assignments: Assignments = None,
    name: DisplayName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job until it has ended.")] = False,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Submit a job again, changed: from its specification with `--set` merged in. It learns from the first one.

    Example: x5tune fork last --set search.lr.high=0.3 --set budget.trials=40
    """
    from x5tune.naming import find_job
    from x5tune.specfile import read_changes

    changes = read_changes(assignments or (), name)
    with screen.talk(url, token, as_json=as_json) as client:
        made = client.fork(find_job(client, job)["id"], changes)
        _after_submission(client, made, watch=watch, as_json=as_json)


def _after_submission(client: Client, job: Job, *, watch: bool, as_json: bool) -> None:
    _warn(job["warnings"])
    if watch:
        from x5tune.job_commands import follow_to_the_end

        follow_to_the_end(client, job, as_json=as_json)
    elif as_json:
        screen.write_json(job)
    else:
        _say_submitted(job)


def validate(
    context: typer.Context,
    file: SpecFile = None,
    *,
    workload: WorkloadName = None,
    assignments: Assignments = None,
    name: DisplayName = None,
    as_json: Json = False,
    url: Url = None,
    token: Token = None,
) -> None:
    """Check a specification and say what it will take. Nothing is submitted.

    Example: x5tune validate examples/digits.yaml
    """
    from x5tune.specfile import read_spec

    spec = read_spec(
        file, workload=workload, assignments=assignments or (), name=name, command=context.meta[AFTER_DASHES]
    )
    with screen.talk(url, token, as_json=as_json) as client:
        answer = client.validate(spec)
    _warn(answer["warnings"])
    if as_json:
        screen.write_json(answer)
    else:
        _say_valid(answer)


def _warn(warnings: list[SpecWarning]) -> None:
    for warning in warnings:
        place = f"{wording.one_line(warning['field'])}: " if warning["field"] else ""
        screen.note(f"Warning: {place}{wording.one_line(warning['message'])}")


def _say_submitted(job: Job) -> None:
    from rich.text import Text

    from x5tune import summary, tables

    text = Text("Submitted ").append(wording.one_line(job["name"]), "bold").append(f"  {job['id']}")
    rows = [("takes", _takes(job["estimate"]))] if job["estimate"] else []
    if job["waiting_for"]:
        rows.append(("waiting", wording.one_line(job["waiting_for"]["message"])))
    if job["state"] != "queued":
        rows.append(("state", job["state"]))
    screen.show(text, tables.pairs(rows), summary.next_steps(job, ()))


def _say_valid(answer: DryRun) -> None:
    from rich.text import Text

    from x5tune import tables

    resolved = answer["resolved"]
    space = resolved.get("search") or {}
    names = [
        name for name, value in space.items() if isinstance(value, dict) and ("low" in value or "choices" in value)
    ]
    objective, fidelity, confirm = (resolved.get(key) or {} for key in ("objective", "fidelity", "confirm"))
    rows = [
        ("name", wording.one_line(resolved.get("name", ""))),
        ("workload", wording.one_line(resolved.get("workload", ""))),
        ("objective", f"{objective.get('direction')} {wording.one_line(objective.get('metric'))}"),
        ("searches", ", ".join(map(wording.one_line, names)) or "nothing: all is fixed"),
        ("baseline", wording.assignments(resolved.get("baseline") or {}, names)),
        ("horizon", f"{wording.horizon(fidelity)}, {fidelity.get('reports')} reports"),
        ("pruner", f"{resolved.get('pruner')}, sampler {resolved.get('sampler')}"),
        ("confirms", f"the best {confirm.get('top')} on {confirm.get('seeds')} fresh seeds"),
        ("takes", _takes(answer["estimate"])),
    ]
    screen.show(Text("The specification is valid.", "bold green"), tables.pairs(rows))


def _takes(estimate: Estimate | None) -> str:
    """What the estimate says, as far as it is known."""
    if estimate is None:
        return "nobody knows yet"
    parts = []
    if estimate["trials"] is not None:
        parts.append(f"up to {wording.plural(estimate['trials'], 'trial')}")
    if estimate["confirmation_runs"]:
        parts.append(wording.plural(estimate["confirmation_runs"], "confirmation run"))
    if estimate["device_hours"] is not None:
        parts.append(f"at most {wording.duration(estimate['device_hours'] * 3600)} of device time")
    if estimate["cost"] is not None:
        parts.append(f"at most {estimate['cost']:.2f} in money")
    return ", ".join(parts) or "until its budget is used up"
