"""What tuning costs beside the training: the same trials in a plain loop, through x5tune, Ray Tune and Optuna.

    python -m bench.overhead [--workload quadratic --workload digits-cnn] [--trials 30] [--postgres [URL]]

One slot everywhere, the same configurations, 20 reports a trial, nothing pruned. Each way runs twice, with few and with
all trials; the *marginal* seconds a trial are the difference per added trial, so that starting up does not count, and
start-up is the rest. Last, how soon a probe reaches the user's first line. Run it on an otherwise idle machine; compare
within one run only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import first_line
from bench.postgres_server import postgres_server
from tuner.cluster import Cluster, ray_cluster
from tuner.spec import resolve

FEW = 5

Configs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """One way of running the trials: seconds."""

    way: str
    startup_s: float
    marginal_s: float


class NoObserver:
    """Takes everything and does nothing, but remembers the configurations."""

    def __init__(self) -> None:
        self.configs: list[dict[str, Any]] = []

    def job_decided(self, job: Any) -> None: ...

    def phase_started(self, phase: Any, total: int) -> None: ...

    def fit_measured(self, fit: Any, probe: Any) -> None: ...

    def precision_measured(self, found: Any, probe: Any) -> None: ...

    def rates_tested(self, found: Any, probe: Any) -> None: ...

    def diagnosed(self, findings: Any, probe: Any) -> None: ...

    def trial_started(self, started: Any) -> None:
        self.configs.append(dict(started.parameters))

    def probe_ended(self, number: int, ended: Any) -> None: ...

    def trial_goes_on(self, number: int) -> None: ...

    def points_reported(self, number: int, points: Any) -> None: ...

    def trial_noted(self, number: int, text: str) -> None: ...

    def trial_ended(self, ended: Any) -> None: ...

    def confirmation_ended(self, confirmation: Any) -> None: ...

    def recipes_found(self, recipes: Any) -> None: ...

    def stop_requested(self) -> None:
        return None


def job(workload: str, trials: int) -> Any:
    """The job that x5tune runs: random configurations from a mild space, nothing pruned, nothing confirmed."""
    spec = {
        "workload": workload,
        "search": {"lr": {"low": 1e-4, "high": 5e-3, "log": True}, "batch_size": 64},
        "fidelity": {"axis": "samples", "max": 12800, "reports": 20},
        "budget": {"trials": trials},
        "sampler": "random",
        "pruner": "none",
        "confirm": {"top": 0},
    }
    return resolve(spec).job


def x5tune_way(workload: str, cluster: Cluster, url: str, folder: Path) -> Callable[[int], Configs]:
    """Through `run_study`; returns the configurations that were tried."""
    from tuner.study import run_study

    def run(trials: int) -> Configs:
        observer = NoObserver()
        run_study(
            job=job(workload, trials),
            job_id=f"bench-{workload}-{trials}-{time.time_ns()}",
            storage_url=url,
            observer=observer,
            cluster=cluster,
            data_folder=folder,
        )
        return observer.configs

    return run


def config_file(workload: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a probe's X5TUNE_CONFIG."""
    from tuner.derivation import derive

    fidelity = job(workload, 1).fidelity
    return {
        "parameters": dict(parameters),
        "derived": derive(parameters),
        "seed": 0,
        "fidelity": {"axis": fidelity.axis, "max": fidelity.max, "reports": fidelity.reports},
        "device": "cpu",
        "precision": "fp32",
        "trial": 0,
        "job_id": "bench",
    }


def train_in_process(workload: str, parameters: Mapping[str, Any], report: Callable[[int, float], None]) -> None:
    """One trial in this very process."""
    from workloads.channel import read_config
    from workloads.horizon import Horizon
    from workloads.open import open_workload

    config = read_config(json.dumps(config_file(workload, parameters)))
    horizon = Horizon.of(config.fidelity, int(config.parameters["batch_size"]))

    class InProcess:
        steps = horizon.steps
        due = staticmethod(horizon.due)

        def report(self, *, step: int, **metrics: float) -> None:
            report(step, metrics["val_loss"])

    opened = OPENED.get(workload) or OPENED.setdefault(workload, open_workload(workload))
    opened.run(config, InProcess())


OPENED: dict[str, Any] = {}


def child(order: str) -> None:
    """`--child`: the plain loop, or Optuna's, in a process of its own."""
    task = json.loads(order)
    if task["way"] == "plain":
        for parameters in task["configs"]:
            train_in_process(task["workload"], parameters, lambda step, value: None)
        return
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=task["url"], study_name=task["name"])
    for parameters in task["configs"]:
        study.enqueue_trial({"lr": parameters["lr"]})

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 5e-3, log=True)
        last = [0.0]

        def report(step: int, value: float) -> None:
            trial.report(value, step)
            trial.should_prune()
            last[0] = value

        train_in_process(task["workload"], {**task["configs"][trial.number], "lr": lr}, report)
        return last[0]

    study.optimize(objective, n_trials=len(task["configs"]))


def process_way(way: str, workload: str, url: str) -> Callable[[Configs], None]:
    """A way that runs in a child process of its own."""

    def run(configs: Configs) -> None:
        order = {"way": way, "workload": workload, "configs": list(configs), "url": url, "name": f"{time.time_ns()}"}
        subprocess.run([sys.executable, "-m", "bench.overhead", "--child", json.dumps(order)], check=True)

    return run


def stock_ray_tune(workload: str, folder: Path, reuse: bool) -> Callable[[Configs], None]:
    """Ray Tune as its documentation shows it: a function trainable, OptunaSearch, ASHA."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    def run(configs: Configs) -> None:
        fixed = dict(configs[0])

        def trainable(config: dict[str, Any]) -> None:
            reports = 0

            def report(step: int, value: float) -> None:
                nonlocal reports
                reports += 1
                tune.report({"val_loss": value, "reports": reports})

            train_in_process(workload, {**fixed, "lr": config["lr"]}, report)

        search = OptunaSearch(
            metric="val_loss", mode="min", points_to_evaluate=[{"lr": parameters["lr"]} for parameters in configs]
        )
        scheduler = ASHAScheduler(time_attr="reports", metric="val_loss", mode="min", grace_period=20, max_t=21)
        tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"lr": tune.loguniform(1e-4, 5e-3)},
            tune_config=tune.TuneConfig(
                search_alg=search, scheduler=scheduler, num_samples=len(configs), reuse_actors=reuse
            ),
            run_config=tune.RunConfig(storage_path=str(folder / f"stock-{time.time_ns()}"), verbose=0),
        ).fit()

    return run


def timed(way: str, run: Callable[[Configs], object], configs: Configs) -> Row:
    """Run with few and with all configurations."""
    few, many = clock(lambda: run(configs[:FEW])), clock(lambda: run(configs))
    marginal = (many - few) / (len(configs) - FEW)
    return Row(way, max(0.0, few - FEW * marginal), marginal)


def clock(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def measure(workload: str, trials: int, postgres: str | None) -> list[Row]:
    """All ways, on one embedded Ray with a single CPU."""
    rows = []
    with tempfile.TemporaryDirectory() as name, ray_cluster(cpus=1) as cluster:
        folder = Path(name)
        sqlite = f"sqlite:///{folder / 'study.db'}"
        found: list[Configs] = []
        stores = [("x5tune, SQLite", sqlite)] + ([("x5tune, PostgreSQL", postgres)] if postgres else [])
        for way, url in stores:
            run = x5tune_way(workload, cluster, url, folder)
            few = clock(lambda run=run: run(FEW))  # type: ignore[misc]
            many = clock(lambda run=run: found.append(run(trials)))  # type: ignore[misc]
            marginal = (many - few) / (trials - FEW)
            rows.append(Row(way, max(0.0, few - FEW * marginal), marginal))
        configs = found[0]
        rows.insert(0, timed("plain loop", process_way("plain", workload, sqlite), configs))
        rows.append(timed("Optuna, one process", process_way("optuna", workload, f"{sqlite}2"), configs))
        for reuse in (True, False):
            way = f"Ray Tune, {'reused' if reuse else 'fresh'} actors"
            rows.append(timed(way, stock_ray_tune(workload, folder, reuse), configs))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--workload", action="append")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument(
        "--postgres", nargs="?", const="own", help="add x5tune on PostgreSQL: a database URL, or a server of our own"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.child)
        return 0
    with contextlib.ExitStack() as stack:
        postgres = arguments.postgres
        if postgres == "own":
            postgres = stack.enter_context(postgres_server()).url
        for workload in arguments.workload or ["quadratic", "digits-cnn"]:
            table(workload, arguments.trials, measure(workload, arguments.trials, postgres))
    first_line.table()
    return 0


def table(workload: str, trials: int, rows: list[Row]) -> None:
    """Print the ways beside the plain loop."""
    plain = rows[0].marginal_s
    print(f"\n{workload}, {trials} trials, 20 reports each, one slot")
    print(f"{'':28}{'start-up s':>12}{'s a trial':>12}{'over plain s':>14}{'x plain':>9}")
    for row in rows:
        ratio = row.marginal_s / plain if plain > 0 else float("nan")
        print(
            f"{row.way:28}{row.startup_s:12.2f}{row.marginal_s:12.3f}{row.marginal_s - plain:14.3f}{ratio:9.1f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
