"""Whether the best configuration lies on the edge of the search space, so that better ones may lie beyond; pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tuner.jobspec import Parameter, Range
from tuner.records import Finding
from tuner.spec_numbers import plain

EDGE = 0.03  # of the range, on its own scale


def edge_of_space(space: Mapping[str, Parameter], best: Mapping[str, Any]) -> Finding | None:
    """The ranges at whose ends the best trial's parameters are; None where all are inside."""
    found: dict[str, Any] = {}
    for name, parameter in space.items():
        value = best.get(name)
        if not isinstance(parameter, Range) or not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if parameter.or_zero and value == 0:
            continue
        place = _place(parameter, float(value))
        if place <= EDGE or place >= 1 - EDGE:
            found[name] = {"value": value, "low": parameter.low, "high": parameter.high}
    if not found:
        return None
    told = [
        f"{name} = {each['value']:.4g} ({plain(each['low'])} to {plain(each['high'])})" for name, each in found.items()
    ]
    message = f"The best trial is on the edge of the space: {', '.join(told)}."
    return Finding(
        "edge_of_space", message, found, f"Widen search for {', '.join(found)}: better values may lie beyond."
    )


def _place(parameter: Range, value: float) -> float:
    low, high = parameter.low, parameter.high
    if parameter.log and low > 0 and value > 0:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low) if high > low else 0.5
