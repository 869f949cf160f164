"""What a built-in workload declares about itself, readable without importing torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Direction = Literal["minimize", "maximize"]
Axis = Literal["samples", "tokens", "seconds", "steps", "epochs"]
ParameterType = Literal["number", "integer", "choice", "number_or_mapping", "number_or_choice"]


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter that a workload accepts.

    `low` and `high` are hard bounds of validity (inclusive; None: unbounded), not a search range. `default` is used
    where neither the search space nor the baseline names the parameter. `choices` holds the valid values of a
    `choice`, and the words that a `number_or_choice` accepts besides a number (`loss_scale: auto`). `nullable`
    parameters accept None (for `grad_clip`: no clipping). `keys` are the keys of the mapping that a
    `number_or_mapping` accepts besides a number (`warmup: {steps: 4000, start: 1e-7}`), all of them required but
    those in `optional_keys`, and but that exactly one of `one_of` is.
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
    optional_keys: tuple[str, ...] = ()
    one_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """A built-in workload's own description.

    `search`, `baseline` and `fidelity` are in the notation of the job specification and are valid there as they
    stand. `entry` is `module:Class`, imported only where a probe runs. `tokens_per_sample` is None where the tokens
    axis makes no sense. `metrics` are all the names that the workload reports; `metric` is the default objective.
    `needs_torch` is False where a probe runs without torch, which a warm parent then need not import.
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
    needs_torch: bool = True
