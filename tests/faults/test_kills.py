"""A small version of `bench.faults`: each kind of target once, on both databases, on a real Ray."""

from __future__ import annotations

import pytest

from bench.faults import Blow, attack

PROCESSES = [
    Blow("probe", "KILL", 0.5, waits=True),
    Blow("slot", "KILL", 0.5, waits=True),
    Blow("runner", "KILL", 1.0, waits=True),
    Blow("raylet", "KILL", 1.0, waits=True),
    Blow("api", "KILL", 0.5, waits=False),
    Blow("runner", "STOP", 0.5, waits=True),
    Blow("supervisor", "KILL", 0.5, waits=True),
    Blow("everything", "KILL", 1.0, waits=True),
]
DATABASE = [
    Blow("connections", "KILL", 0.5, waits=True),
    Blow("server", "KILL", 0.5, waits=True),
    Blow("warm parent", "KILL", 0.5, waits=True),
    Blow("runner", "TERM", 0.5, waits=False),
    Blow("everything", "KILL", 1.0, waits=True),
]


@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("database", "blows"),
    [("sqlite", PROCESSES), pytest.param("postgres", DATABASE, marks=pytest.mark.postgres)],
)
def test_whatever_is_killed_no_job_is_lost_or_counted_twice(database: str, blows: list[Blow]) -> None:
    fire, _ = attack(database, blows, seed=5, jobs=2, resume_s=90)
    assert len(fire.struck) == len(blows)
    assert fire.problems == []


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_a_killed_ray_costs_no_wait_for_a_long_lease() -> None:
    """Neither for Ray's own minute nor for the lease, for the runner's death is known."""
    blows = [Blow("gcs", "KILL", 1.0, waits=True), Blow("runner", "KILL", 1.0, waits=True)]
    fire, _ = attack("sqlite", blows, seed=6, jobs=1, resume_s=90, lease_s=900)
    assert fire.problems == []
