"""What the reports of trials say of a training that is not ours, of which nothing else can be seen; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tuner.records import Finding

FEW = 3


def from_reports(
    trials: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    metric: str,
    direction: Literal["minimize", "maximize"],
) -> list[Finding]:
    """What is wrong by the curves alone; `trials` are parameters and finite values in the order of the reports."""
    curves = [values for _, values in trials if len(values) >= FEW]
    if curves and all(len(set(values)) == 1 for values in curves):
        message = f"{metric} is the same at every report of a run: {curves[0][0]:.6g}."
        action = "Check that what is evaluated is what is trained, and that the metric is computed anew each time."
        return [Finding("metric_constant", message, {"curves": len(curves)}, action)]
    ends = [(parameters, values[-1]) for parameters, values in trials if values]
    lasts = {last for _, last in ends}
    settings = {repr(sorted(parameters.items(), key=str)) for parameters, _ in ends}
    if len(ends) >= FEW and len(settings) >= FEW and len(lasts) == 1:
        message = f"{len(ends)} trials with different parameters all end at {metric} = {ends[0][1]:.6g}."
        action = "Check that the training uses the parameters that it is given."
        return [Finding("parameters_ignored", message, {"trials": len(ends)}, action)]
    sign = 1 if direction == "minimize" else -1
    if curves and all(sign * (values[0] - min(values, key=lambda value: sign * value)) <= 0 for values in curves):
        message = f"In none of {len(curves)} runs {metric} gets better than at its first report."
        action = "Lower the learning rate, look at data and labels, and check that direction is the one of the metric."
        return [Finding("does_not_learn", message, {"curves": len(curves)}, action)]
    return []
