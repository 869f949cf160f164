"""The training seeds of a job, all derived from the job's own seed.

All search trials share ONE training seed: they see the same initial weights and the same order of samples, so that
their differences come from the parameters (a paired comparison has less noise). The price is that the search may fit
that one seed; therefore confirmation trains on fresh seeds, which no search trial has seen.
"""

from __future__ import annotations

import hashlib


def trial_seed(job_seed: int) -> int:
    """The seed (0 .. 2^32 - 1) that every search trial of the job trains with."""
    return _derived(f"search {job_seed}")


def fresh_seeds(job_seed: int, count: int) -> list[int]:
    """`count` different seeds for confirmation, none of them `trial_seed`; a longer list starts with the shorter."""
    used = {trial_seed(job_seed)}
    seeds: list[int] = []
    number = 0
    while len(seeds) < count:
        seed = _derived(f"confirm {job_seed} {number}")
        number += 1
        if seed not in used:
            used.add(seed)
            seeds.append(seed)
    return seeds


def _derived(label: str) -> int:
    return int.from_bytes(hashlib.sha256(f"x5tune {label}".encode()).digest()[:4], "big")
