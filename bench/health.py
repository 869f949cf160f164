"""What looking after a run's health costs: the share of a probe's time, measured within one run of each built-in.

`python -m bench.health [NAME ...]` times every call that the training loop makes for health, reference gradients
included, and prints it beside the whole run (training, evaluation, reports). The claim: under 5 %.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workloads.catalog import MANIFESTS, manifest
from workloads.contract import Fidelity, Precision, ProbeConfig
from workloads.health import Health
from workloads.horizon import Horizon
from workloads.open import open_workload
from workloads.reference import Reference

TIMED = ((Health, ("see_noise", "see_norm", "before_update", "report")), (Reference, ("norm", "magnitudes")))


@dataclass
class SilentProbe:
    """Takes reports and says nothing."""

    horizon: Horizon

    @property
    def steps(self) -> int:
        return self.horizon.steps

    def due(self, step: int) -> bool:
        return self.horizon.due(step)

    def report(self, *, step: int, **metrics: float) -> None: ...


class Stopwatch:
    """Adds up the seconds spent in the calls that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def share(name: str, precision: Precision = "fp32") -> float:
    """The share of a full run of a built-in that goes into its health."""
    described, workload = manifest(name), open_workload(name)
    fidelity = Fidelity(**{"reports": 20, **described.fidelity})  # type: ignore[arg-type]
    config = ProbeConfig(described.baseline, {}, 1, fidelity, "cpu", precision, 0, "bench")
    batch_size = int(str(described.baseline["batch_size"]))
    watch = Stopwatch()
    kept = [(kind, name, getattr(kind, name)) for kind, names in TIMED for name in names]
    after = Health.after_update
    for kind, method, call in kept:
        setattr(kind, method, watch.wrap(call))
    Health.after_update = watch.wrap(after)  # type: ignore[method-assign]
    began = time.perf_counter()
    try:
        workload.run(config, SilentProbe(Horizon.of(fidelity, batch_size, described.tokens_per_sample)))
    finally:
        for kind, method, call in kept:
            setattr(kind, method, call)
        Health.after_update = after  # type: ignore[method-assign]
    return watch.seconds / (time.perf_counter() - began)


def main() -> None:
    for name in sys.argv[1:] or [name for name, described in MANIFESTS.items() if described.needs_torch]:
        precisions: tuple[Precision, ...] = ("fp32", "fp16")
        for precision in precisions:
            print(f"{name:20} {precision}  {share(name, precision):6.2%}")


if __name__ == "__main__":
    main()
