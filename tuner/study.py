"""`run_study`: one job from its resolved specification to recipes, on the Ray that is running."""

from __future__ import annotations

import contextlib
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from tuner.assignment import SlotSetup
from tuner.checkpoints import Checkpoints
from tuner.cluster import Cluster, ClusterGone, prune_logs
from tuner.coordinator import Coordinator
from tuner.device import Device, find_device
from tuner.device_wait import most_s
from tuner.earlier_jobs import Learnt
from tuner.errors import StudyInterruptedError, TunerError
from tuner.jobspec import ResolvedJob
from tuner.metric_files import can_read_events
from tuner.precision_phase import wants_measuring
from tuner.records import Confirmation, EarlierEnd, Observer, StudyResult
from tuner.search import Search, is_passing, open_storage


class CannotRunError(TunerError):
    """The job asks for more than this cluster has."""


class CutShortError(StudyInterruptedError):
    """The study has not come to its end; running it again takes it up where it stands."""


def decide(job: ResolvedJob, cluster: Cluster) -> tuple[ResolvedJob, Device]:
    """`job` with what only the runner can decide: GPUs a trial, and a precision that is not worth measuring.

    Raises CannotRunError.
    """
    gpus, processes = job.resources.gpus, job.resources.processes
    if gpus is None:
        gpus = float(processes) if cluster.gpus >= 1 else 0.0
        if gpus > cluster.gpus:
            remedy = "set resources.gpus: 0 to run them on the CPU, or lower resources.processes"
            each = f"resources.processes = {processes} takes a GPU each, but this cluster has {cluster.gpus:g}"
            raise CannotRunError(f"{each}; {remedy}")
    if gpus > cluster.gpus:
        raise CannotRunError(f"resources.gpus = {gpus:g}, but this cluster has {cluster.gpus:g} GPUs")
    if job.resources.cpus > cluster.cpus:
        why = f", one for each of resources.processes = {processes}" if job.resources.cpus == processes > 1 else ""
        remedy = f"set resources.cpus: {cluster.cpus:g} or less" + (" for them to share" if processes > 1 else "")
        asked = f"resources.cpus = {job.resources.cpus:g}{why}"
        raise CannotRunError(f"{asked}, but this cluster has {cluster.cpus:g} CPUs; {remedy}")
    device = find_device(gpus)
    resources = replace(job.resources, gpus=gpus)
    if job.metrics is not None and job.metrics.tensorboard is not None and not can_read_events():
        install = "pip install 'x5tune[tensorboard]'"
        raise CannotRunError(
            f"metrics.tensorboard is read by the package tensorboard, which this runner lacks: {install}"
        )
    decided = replace(job, resources=resources)
    if not wants_measuring(decided, device):
        decided = replace(decided, precision=device.precision(job.precision))  # type: ignore[arg-type]  # one of them
    return decided, device


def slot_count(job: ResolvedJob, cluster: Cluster) -> int:
    """How many trials run at once."""
    counts = [cluster.cpus / job.resources.cpus] if job.resources.cpus else []
    if job.resources.gpus:
        counts.append(cluster.gpus / job.resources.gpus)
    return max(1, int(min(counts) + 1e-9)) if counts else 1


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """What fails because Ray or the database does is no failure of the study.

    Raises ClusterGone for Ray and StudyInterruptedError for the database.
    """
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise ClusterGone(f"Ray has failed: {error}") from error  # a head that is back has no place for this process
    except (SQLAlchemyError, StorageInternalError) as error:
        if not is_passing(error):
            raise
        raise StudyInterruptedError(f"The study's database does not answer: {error}") from error


@interruptible()
def run_study(
    *,
    job: ResolvedJob,
    job_id: str,
    storage_url: str,
    observer: Observer,
    cluster: Cluster,
    data_folder: Path,
    confirmations: Sequence[Confirmation] = (),
    ends: Mapping[int, EarlierEnd] | None = None,
    fit: Mapping[str, Any] | None = None,
    rates: Mapping[str, Any] | None = None,
    frontiers: Sequence[Mapping[str, Any]] = (),
    energy_j: float = 0.0,
    checkpoint_folder: Path | None = None,
    learnt: Learnt | None = None,
    guard: Callable[[Connection], None] | None = None,
) -> StudyResult:
    """Run a job's study to its end and say what it came to; takes up an existing study named `job_id`.

    Blocks. Everything is told to `observer` from this thread; an exception of the observer ends the study at once and
    passes through. `confirmations`, `ends`, `fit` and `rates` are what earlier attempts have told their observers,
    `energy_j` what they took; `frontiers` is what earlier jobs have proven, `learnt` what their trials say.
    `checkpoint_folder` is the job's own, on a file system that the slots share; it is removed when the job is over, and
    kept for the next attempt where it is cut short. `guard` is called in every transaction of the study before its
    commit and may refuse it. Raises CannotRunError, StudyInterruptedError, and ClusterGone, which ends the process
    unless caught.
    """
    from ray import tune

    from tuner.slot import Slot
    from tuner.tune_pair import Runs, StudyScheduler, StudySearcher, StudyStopper

    job, device = decide(job, cluster)
    observer.job_decided(job)
    slots = slot_count(job, cluster)
    folder = cluster.folder / "s"
    setup = SlotSetup(
        workload=job.workload,
        code=job.code,
        metrics=job.metrics,
        metric=job.objective.metric,
        folder=str(folder),
        environment={**device.environment, **job.environment, "X5TUNE_DATA": str(data_folder)},
        cpus=job.resources.cpus,
        device_share=job.resources.gpus or 1.0,
        gpus=job.resources.gpus or 0.0,
        device_name=device.name,
        probe_seconds=job.limits.probe_seconds,
        silence_seconds=job.limits.silence_seconds,
        host_memory_mib=job.limits.host_memory_mib,
        processes=job.resources.processes,
        disk_mib=job.limits.disk_mib,
        device_wait_s=most_s(job),
    )
    resources = {"cpu": job.resources.cpus, "gpu": job.resources.gpus or 0}
    storage = open_storage(storage_url, guard)
    checkpoints = Checkpoints(checkpoint_folder)
    try:
        search = Search(job, job_id, storage)
        coordinator = Coordinator(
            job,
            job_id,
            search,
            observer,
            device=device,
            slots=slots,
            confirmations=confirmations,
            ends=ends,
            fit=fit,
            rates=rates,
            frontiers=frontiers,
            earlier_energy_j=energy_j,
            checkpoints=checkpoints,
            learnt=learnt,
        )
        coordinator.begin()
        runs = Runs(coordinator, setup)
        tuner = tune.Tuner(
            tune.with_resources(Slot, resources),
            tune_config=tune.TuneConfig(
                search_alg=StudySearcher(runs),
                scheduler=StudyScheduler(runs, slots),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="job",
                stop=StudyStopper(runs),
                storage_path=str(cluster.folder / "tune"),
                verbose=0,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            ),
        )
        with own_signals(), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            tuner.fit()
    finally:
        shutil.rmtree(cluster.folder / "tune", ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        prune_logs(cluster.folder)
        with contextlib.suppress(Exception):
            storage.remove_session()
            storage.engine.dispose()
    if runs.failure is not None:
        raise runs.failure
    if not coordinator.is_finished:
        raise CutShortError("Ray Tune has ended before the study was finished")
    checkpoints.drop_all()
    return coordinator.result()


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep Tune from taking over SIGINT, which belongs to the runner."""
    before = os.environ.get("TUNE_DISABLE_SIGINT_HANDLER")
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TUNE_DISABLE_SIGINT_HANDLER"]
