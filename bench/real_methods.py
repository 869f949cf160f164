"""The tuners that `bench.real` compares, each through its own real engine on the same workload and compute."""

from __future__ import annotations

import contextlib
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.overhead import NoObserver
from bench.real_training import Account, Parameters, SpentError, job_of, train
from tuner.seeds import trial_seed
from tuner.spec import resolve
from tuner.study_space import StudySpace, suggest
from tuner.unit_space import UnitSpace
from workloads.contract import Stop

Method = Callable[[str, Account, int, Any], None]


def x5tune(workload: str, account: Account, seed: int, cluster: Any) -> None:
    """Through `run_study`: our own search with its pauses, nothing confirmed."""
    from tuner.study import run_study

    budget = {"trials": None, "full_runs": account.budget}
    job = resolve({"workload": workload, "budget": budget, "confirm": {"top": 0}, "seed": seed}).job

    class Watching(NoObserver):
        reached: dict[int, float]

        def __init__(self) -> None:
            super().__init__()
            self.reached = {}

        def points_reported(self, number: int, points: Any) -> None:
            for point in points:
                self.reached[number] = max(self.reached.get(number, 0.0), point.position / job.fidelity.max)
            account.spent = sum(self.reached.values())

        def recipes_found(self, recipes: Any) -> None:
            account.recommend(recipes[0].parameters if recipes else job.baseline)

    account.recommend(job.baseline)
    with tempfile.TemporaryDirectory(prefix="x5b") as folder:
        run_study(
            job=job,
            job_id=f"real-{workload}-{seed}-{time.time_ns()}",
            storage_url=f"sqlite:///{folder}/optuna.db",
            observer=Watching(),
            cluster=cluster,
            data_folder=Path(folder),
            checkpoint_folder=Path(folder) / "checkpoints",
        )


def random(workload: str, account: Account, seed: int, _cluster: Any) -> None:
    """The baseline, then whole runs of random configurations."""
    job = job_of(workload)
    space, rng = UnitSpace(job.space), np.random.default_rng(seed)
    configurations = [dict(job.baseline)]
    with contextlib.suppress(SpentError):
        while True:
            given = configurations.pop() if configurations else space.take(space.random(rng, 1)[0])
            run(workload, given, account, seed, lambda _index, _value: False)


def optuna(workload: str, account: Account, seed: int, _cluster: Any) -> None:
    """TPE with Hyperband by their defaults; the baseline first."""
    import optuna as stock

    job = job_of(workload)
    space = StudySpace(job.space)
    stock.logging.set_verbosity(stock.logging.ERROR)
    pruner = stock.pruners.HyperbandPruner(max_resource=job.fidelity.reports)
    study = stock.create_study(sampler=stock.samplers.TPESampler(seed=seed), pruner=pruner)
    study.enqueue_trial(space.to_study(job.baseline))

    def objective(trial: Any) -> float:
        stored = {name: suggest(trial, name, one) for name, one in space.distributions.items()}

        def is_hopeless(index: int, value: float) -> bool:
            trial.report(value, index)
            return bool(trial.should_prune())

        value, is_stopped = run(workload, space.from_study(stored), account, seed, is_hopeless)
        if is_stopped or not math.isfinite(value):
            raise stock.TrialPruned
        return value

    with contextlib.suppress(SpentError):
        study.optimize(objective)


def ray_tune(workload: str, account: Account, seed: int, _cluster: Any) -> None:
    """Ray Tune as its documentation has it: OptunaSearch and ASHA by their defaults, one trial at a time."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search import ConcurrencyLimiter
    from ray.tune.search.optuna import OptunaSearch

    job = job_of(workload)
    space = StudySpace(job.space)
    reached: dict[str, float] = {}

    def trainable(config: Mapping[str, Any]) -> None:
        def tell(index: int, fraction: float, value: float) -> None:
            tune.report({"loss": min(value, 1e9), "index": index, "fraction": fraction})

        train(workload, space.from_study(dict(config)), tell, seed=trial_seed(seed))

    class Watch(tune.Stopper):
        is_over = False

        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            given = space.from_study({name: result["config"][name] for name in space.distributions})
            more = result["fraction"] - reached.get(trial_id, 0.0)
            reached[trial_id] = result["fraction"]
            try:
                account.spend(given, more, result["loss"])
            except SpentError:
                self.is_over = True
            return False

        def stop_all(self) -> bool:
            return self.is_over

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="x5b") as folder:
        warnings.simplefilter("ignore")
        search = OptunaSearch(
            dict(space.distributions), metric="loss", mode="min", seed=seed,
            points_to_evaluate=[space.to_study(job.baseline)],
        )  # fmt: skip
        tune.Tuner(
            trainable,
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                search_alg=ConcurrencyLimiter(search, max_concurrent=1),
                scheduler=ASHAScheduler(time_attr="index", max_t=job.fidelity.reports),
                num_samples=-1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="real", storage_path=folder, stop=Watch(), verbose=0),
        ).fit()


def run(
    workload: str, given: Parameters, account: Account, seed: int, is_hopeless: Callable[[int, float], bool]
) -> tuple[float, bool]:
    """One run of a tuner that trains in this process: its last value, and whether it was stopped on the way."""
    state = {"reached": 0.0, "index": 0, "stopped": False}

    def tell(index: int, fraction: float, value: float) -> None:
        more, state["reached"] = fraction - state["reached"], fraction
        account.spend(given, more, value)
        if index > state["index"]:
            state["index"] = index
            if fraction < 1 and is_hopeless(index, value):
                state["stopped"] = True
                raise Stop("pruned")

    return train(workload, given, tell, seed=trial_seed(seed)), bool(state["stopped"])


METHODS: Mapping[str, Method] = {"x5tune": x5tune, "ray-tune": ray_tune, "optuna": optuna, "random": random}
