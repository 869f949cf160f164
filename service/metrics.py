"""What Prometheus reads of the service and its jobs: from the database, so that every API process says the same.

Sums are over the jobs that are stored, so they go down when one is deleted: gauges, not counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy.orm import Session

from service.store import jobs, runners, trials

RUNNER_STATES = ("starting", "idle", "busy", "stopping", "disk_full")


class _Standing(Collector):
    """The state of one session's database, read when it is collected."""

    def __init__(self, session: Session, silence_s: float) -> None:
        self._session, self._silence_s = session, silence_s

    def collect(self) -> Iterator[Metric]:
        yield _family("x5tune_jobs", "Jobs by state.", "state", jobs.counts_by_state(self._session))
        live = [each.runner.state for each in runners.seen(self._session, self._silence_s) if each.is_live]
        counts = {state: live.count(state) for state in RUNNER_STATES}
        yield _family("x5tune_runners", "Connected runners by state.", "state", counts)
        outcomes = trials.counts_by_outcome(self._session)
        yield _family("x5tune_trials", "Ended trials by outcome.", "outcome", outcomes)
        spent = jobs.spent(self._session)
        yield GaugeMetricFamily("x5tune_device_seconds", "Device time of all jobs.", spent.device_seconds)
        yield GaugeMetricFamily("x5tune_energy_joules", "Energy of all runs that were measured.", spent.energy_j)
        runs = {"true": spent.measured_runs, "false": spent.unmeasured_runs}
        yield _family("x5tune_runs", "Runs by whether their energy was measured.", "energy_measured", runs)


def text(session: Session, silence_s: float) -> bytes:
    """The exposition; `silence_s` is how long a runner may say nothing before it is not connected any more."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Standing(session, silence_s))
    return generate_latest(registry)


def _family(name: str, help_text: str, label: str, counts: dict[str, int]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help_text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family
