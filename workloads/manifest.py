"""What a built-in workload declares about itself, readable without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["minimize", "maximize"]
Axis = Literal["samples", "tokens", "seconds", "steps"]
ParameterType = Literal["number", "integer", "choice", "number_or_mapping"]


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter that a workload accepts.

    `low` and `high` are hard bounds of validity (inclusive; None: unbounded), not a search range. `default` is used
    where neither the search space nor the baseline names the parameter. `choices` holds the valid values of a
    `choice`. `nullable` parameters accept None (for `grad_clip`: no clipping). `keys` are the mappings that a
    `number_or_mapping` accepts besides a number, as sets of required and optional keys
    (`warmup: {steps: 4000, start: 1e-7}`).
    """

    name: str
    type: ParameterType
    summary: str
    default: object
    low: float | None = None
    high: float | None = None
    exclusive_low: bool = False
    choices: tuple[object, ...] = ()
    nullable: bool = False
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A built-in workload's own description.

    `search`, `baseline` and `fidelity` are in the notation of the job specification and are valid there as they
    stand. `entry` is `module:Class`, imported only where a probe runs. `tokens_per_sample` is None where the tokens
    axis makes no sense. `metrics` are all the names that the workload reports; `metric` is the default objective.
    """

    name: str
    summary: str
    entry: str
    metric: str
    direction: Direction
    metrics: tuple[str, ...]
    parameters: Mapping[str, ParameterInfo]
    search: Mapping[str, object]
    baseline: Mapping[str, object]
    fidelity: Mapping[str, object]
    train_samples: int
    data: str
    model_parameters: int
    tokens_per_sample: int | None = None
