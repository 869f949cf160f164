"""A diagnosis on this machine, without a service: the job's baseline, in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from tuner.device import Device, find_device
from tuner.diagnose_phase import diagnosis_order
from tuner.errors import TunerError
from tuner.fit_subject import is_our_loop
from tuner.jobspec import ResolvedJob
from tuner.probe_process import Exited, ProbeHost, ProbeOrder, ProbeStartError
from tuner.scratch import scratch
from tuner.seeds import trial_seed
from workloads.out_of_memory import ended_out_of_memory

LEAST_GRACE_S, GRACE_SHARE = 10.0, 0.25
"""What a check under way may take beyond the seconds that a diagnosis is to take."""


QUICK_S = 1.0  # there is nothing to be saved


class CannotDiagnoseError(TunerError):
    """The workload cannot be diagnosed here; the message says why."""


def diagnose_job(job: ResolvedJob, seconds: float, *, names_metric: bool = True) -> list[dict[str, Any]]:
    """One verdict a check (`workloads.verdicts`), of a built-in or of a class, with the job's baseline.

    Unless the job `names_metric`, whatever `evaluate` gives will do. What keeps it from being imported, or kills it, is
    a verdict too. Raises CannotDiagnoseError for what x5tune does not train itself.
    """
    if not is_our_loop(job):
        what = f"{job.workload} trains by itself, so nothing but its reports can be seen from outside"
        raise CannotDiagnoseError(
            f"{what}. Diagnosed are built-ins with a model, and classes with model, train_data, eval_data, loss and "
            "evaluate: hand in such a class to have its data, gradients and learning looked at."
        )
    device = _device(job)
    probe = {
        "parameters": dict(job.baseline),
        "derived": {"loss_scale": job.baseline.get("loss_scale", "auto")},
        "seed": trial_seed(job.seed),
        "fidelity": job.fidelity.to_json(),
        "device": device.type,
        "precision": device.precision(job.precision),
        "trial": -1,
        "job_id": "diagnosis",
        "split": "validation",
        "fit": diagnosis_order(job, seconds, names_metric=names_metric),
    }
    with scratch("x5d-") as folder:
        host = ProbeHost(_to_load(job), folder / "h", _environment(job, device), job.resources.cpus)
        try:
            return _run(host, job, probe, seconds)
        finally:
            host.close()


def _run(host: ProbeHost, job: ResolvedJob, probe: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    try:
        host.ensure_ready()
    except ProbeStartError as error:
        said = f"{job.workload} cannot be imported: {error}"
        return [
            _problem("cannot_be_imported", said, "Mend the import: run the file with python first.", error.traceback)
        ]
    host.start(dict(probe), {}, ProbeOrder())
    patience_s = seconds + grace_s(seconds)
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        event = host.wait(1.0)
        if isinstance(event, Exited):
            return _verdicts(event)
    exited = host.end("the diagnosis took too long", QUICK_S)
    action = "Make data and model smaller for the diagnosis, or give it more with --seconds."
    known = [] if exited is None else list(exited.health.get("verdicts") or [])
    return [*known, _problem("too_slow", f"The diagnosis has not ended in {patience_s:.0f} s.", action)]


def grace_s(seconds: float) -> float:
    return max(LEAST_GRACE_S, GRACE_SHARE * seconds)


def _verdicts(exited: Exited) -> list[dict[str, Any]]:
    said = exited.said or {}
    found = (said.get("fit") or {}).get("verdicts")
    if found is not None:
        return list(found)
    reason = said.get("reason") or f"Its process {_ended(exited.status)}"
    if said.get("outcome") == "out_of_memory" or ended_out_of_memory(exited.output, is_limited=False):
        return [_problem("out_of_memory", f"Out of memory: {reason}.", "Lower baseline.batch_size.", exited.output)]
    return [_problem("crashes", f"{reason}.", "Mend this first; nothing else could be looked at.", exited.output)]


def _ended(status: int | None) -> str:
    if status is not None and -status in set(signal.Signals):
        return f"was killed by {signal.Signals(-status).name}"
    return "was lost" if status is None else f"ended by itself, with status {status}"


def _problem(code: str, message: str, action: str, log: str = "") -> dict[str, Any]:
    evidence = {"log": log[-2000:]} if log else {}
    return {"code": code, "level": "problem", "message": message, "evidence": evidence, "action": action}


def _device(job: ResolvedJob) -> Device:
    """The GPU where there is one and the job does not ask for none."""
    if job.resources.gpus == 0:
        return find_device(0)
    found = find_device(1)
    return found if found.has_bf16 is not None else find_device(0)


def _to_load(job: ResolvedJob) -> dict[str, Any]:
    if job.code is None:
        return {"workload": job.workload, "processes": 1}
    named = {"target": job.code.target, "folder": job.code.folder, "metric": job.objective.metric}
    return {**named, "processes": 1}


def _environment(job: ResolvedJob, device: Device) -> dict[str, str]:
    data = {"X5TUNE_DATA": os.environ["X5TUNE_DATA"]} if "X5TUNE_DATA" in os.environ else {}
    return {**data, **device.environment, **job.environment}
