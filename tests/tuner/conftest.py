"""One Ray for all tests of this folder that need it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from tuner.cluster import Cluster, ray_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """An embedded Ray of two CPUs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        running = ray_cluster(cpus=2)
        found = running.__enter__()
    yield found
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        running.__exit__(None, None, None)
