"""From closed trials and confirmation runs to recipes, a verdict and a diagnosis; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.confirmation import Judgement
from tuner.derivation import derive
from tuner.records import Confirmation, Finding, Frontier, Outcome, RecipeDraft
from tuner.search import Closed
from workloads.manifest import Direction
from workloads.noise import trade


def is_better(left: float, right: float, direction: Direction) -> bool:
    """Whether `left` is strictly better than `right`."""
    return left < right if direction == "minimize" else left > right


Derive = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What follows from a configuration on the device at hand."""


def ranked(closed: Sequence[Closed], direction: Direction) -> list[Closed]:
    """The trials that reached the full horizon, best first; one for each configuration."""
    sign = 1.0 if direction == "minimize" else -1.0
    done = [trial for trial in closed if trial.outcome == Outcome.OK and trial.value is not None]
    found: list[Closed] = []
    for trial in sorted(done, key=lambda t: (sign * (t.value or 0.0), t.number)):
        if all(trial.parameters != other.parameters for other in found):
            found.append(trial)
    return found


def baseline_of(closed: Sequence[Closed]) -> Closed | None:
    """The baseline's trial, if it reached the full horizon."""
    return next((t for t in closed if t.is_baseline and t.outcome == Outcome.OK), None)


def finalists(closed: Sequence[Closed], direction: Direction, top: int) -> list[Closed]:
    """The `top` best trials that beat the baseline's value (all of them where the baseline did not train)."""
    baseline = baseline_of(closed)
    others = [trial for trial in ranked(closed, direction) if not trial.is_baseline]
    if baseline is not None and baseline.value is not None:
        limit = baseline.value
        others = [t for t in others if t.value is not None and is_better(t.value, limit, direction)]
    return others[:top]


def seen_recipes(
    found: Sequence[tuple[Closed, float | None]],
    direction: Direction,
    device: str,
    *,
    derived: Derive = derive,
    frontier: Frontier | None = None,
) -> list[RecipeDraft]:
    """Recipes of trials, the best first, each with the baseline's value where its own was seen.

    `full_runs` in `spend` says where that is: after this share of a full run.
    """
    drafts = []
    for rank, (trial, base) in enumerate(found, start=1):
        assert trial.value is not None
        gain = None if base is None else (base - trial.value if direction == "minimize" else trial.value - base)
        drafts.append(
            RecipeDraft(
                trial=trial.number,
                rank=rank,
                status="provisional",
                parameters=trial.parameters,
                derived=derived(trial.parameters),
                device=device,
                value=trial.value,
                baseline_value=base,
                difference=gain,
                memory=frontier.evidence() if frontier else {},
                spend={"device_seconds": trial.device_seconds, "full_runs": trial.full_runs, **pace_spend(trial)},
            )
        )
    return drafts


def confirmed_recipes(
    candidates: Sequence[Closed],
    judgements: Mapping[int, Judgement],
    runs: Sequence[Confirmation],
    direction: Direction,
    device: str,
    *,
    derived: Derive = derive,
    frontier: Frontier | None = None,
) -> list[RecipeDraft]:
    """Finalists with their paired evidence: proven ones first, each group by its mean on the fresh seeds."""
    sign = 1.0 if direction == "minimize" else -1.0

    def order(trial: Closed) -> tuple[bool, float, int]:
        judged = judgements[trial.number]
        mean = sign * judged.mean if judged.mean is not None else float("inf")
        return judged.status != "proven", mean, trial.number

    drafts = []
    for rank, trial in enumerate(sorted(candidates, key=order), start=1):
        judged = judgements[trial.number]
        mine = [run for run in runs if run.trial == trial.number]
        peaks = [run.probe.peak_memory_bytes for run in mine if run.probe and run.probe.peak_memory_bytes]
        seconds = trial.device_seconds + sum(run.probe.device_seconds for run in mine if run.probe)
        value = judged.mean if judged.mean is not None else trial.value
        assert value is not None
        drafts.append(
            RecipeDraft(
                trial=trial.number,
                rank=rank,
                status="proven" if judged.status == "proven" else "provisional",
                parameters=trial.parameters,
                derived=derived(trial.parameters),
                device=device,
                value=value,
                baseline_value=judged.baseline_mean,
                difference=judged.difference,
                interval=judged.interval,
                confidence=judged.confidence,
                seeds=judged.seeds,
                memory={
                    **({"peak_host_bytes": max(peaks)} if peaks else {}),
                    **(frontier.evidence() if frontier else {}),
                },
                spend={"device_seconds": seconds, **pace_spend(trial)},
            )
        )
    return drafts


def pace_of(health: Mapping[str, Any]) -> dict[str, float]:
    """What a trial's health says of its pace: the gradient noise scale and the samples a second."""
    told = {name: health.get(name) for name in ("noise_scale", "samples_per_s")}
    return {name: float(value) for name, value in told.items() if isinstance(value, int | float)}


def pace_spend(trial: Closed) -> dict[str, float]:
    """Throughput, the critical batch, and what this batch costs beside the fewest steps and the fewest samples."""
    noise, batch = trial.pace.get("noise_scale"), trial.parameters.get("batch_size")
    found = {"samples_per_s": trial.pace["samples_per_s"]} if "samples_per_s" in trial.pace else {}
    if noise and isinstance(batch, int):
        found |= {"critical_batch": noise, **trade(batch, noise)}
    return found


def diagnose(
    closed: Sequence[Closed], recipes: Sequence[RecipeDraft], direction: Direction, metric: str, confirmed: bool
) -> list[Finding]:
    """Why there is no recommendation, or what it leaves open, in the terms of what was measured."""
    counted = [trial for trial in closed if trial.outcome != Outcome.LOST]
    outcomes = Counter(str(trial.outcome) for trial in counted)
    evidence: dict[str, Any] = {"outcomes": dict(outcomes)}
    if not counted:
        return [Finding("nothing_ran", "No trial has run.", evidence, "Raise the budget and submit the job again.")]
    if not ranked(closed, direction):
        return [_nothing_trained(counted, outcomes, evidence)]
    baseline, best = baseline_of(closed), ranked(closed, direction)[0]
    evidence |= {"best": best.value, "best_trial": best.number, "baseline": baseline.value if baseline else None}
    if not recipes and all(trial.is_baseline for trial in counted):
        message = "Nothing but the baseline was tried."
        action = "Raise the budget, or search more than one configuration, and submit the job again."
        return [Finding("nothing_tried", message, evidence, action)]
    if not recipes:
        message = f"No configuration reached a better {metric} than the baseline."
        action = "Keep the baseline, or widen the search space or the budget."
        return [Finding("baseline_is_best", message, evidence, action)]
    if confirmed and all(recipe.status != "proven" for recipe in recipes):
        evidence |= {"seeds": recipes[0].seeds, "difference": recipes[0].difference, "interval": recipes[0].interval}
        message = "The best configurations are not better than the baseline beyond the noise between seeds."
        action = "Keep the baseline; a longer fidelity or more confirm.seeds can show a smaller difference."
        return [Finding("not_significant", message, evidence, action)]
    if any(recipe.status == "proven" and recipe.confidence is None for recipe in recipes):
        message = "Confirmation came out the same on every seed, so chance between seeds is untested."
        action = (
            "Hand the seed to the training ({seed} in a command, config.seed in Python), if anything in it is random."
        )
        return [Finding("seed_has_no_effect", message, {"seeds": recipes[0].seeds}, action)]
    return []


def memory_growth(seen: str) -> Finding:
    """A run's memory grew from step to step; `seen` says by how much and where."""
    action = "Keep numbers instead of tensors (`.item()`, `.detach()`), or bound what is kept; a longer run needs more."
    return Finding("memory_growth", seen[:1].upper() + seen[1:] + ".", {}, action)


def failures(closed: Sequence[Closed], failure: str) -> Finding:
    """Why a job was given up: too many trials in a row could not be run."""
    outcomes = Counter(str(trial.outcome) for trial in closed if trial.outcome != Outcome.LOST)
    read = "Read the log of the last trial (x5tune trials JOB)"
    action = f"{read}, mend the cause or leave it out of the search, and submit the job again."
    return Finding("failures", failure, {"outcomes": dict(outcomes)}, action)


def _nothing_trained(counted: Sequence[Closed], outcomes: Counter[str], evidence: dict[str, Any]) -> Finding:
    worst = outcomes.most_common(1)[0][0]
    rates = [t.parameters["lr"] for t in counted if isinstance(t.parameters.get("lr"), int | float)]
    if rates:
        evidence |= {"lowest_lr": min(rates), "highest_lr": max(rates)}
    if worst == Outcome.DIVERGED:
        message = f"Every trial failed to train; {outcomes[worst]} of {len(counted)} diverged."
        lower = f"Lower search.lr below {min(rates):.3g}" if rates else "Lower the learning rate"
        action = f"{lower}, lengthen the warm-up, or check the data and the loss for values that are not finite."
        return Finding("all_diverged", message, evidence, action)
    if worst == Outcome.CANCELLED:
        message = "The search was ended before any trial reached the full horizon."
        action = "Raise the budget, or shorten fidelity.max, and submit the job again."
        return Finding("nothing_trained", message, evidence, action)
    message = f"No trial reached the full horizon; most ended as {worst}."
    return Finding("nothing_trained", message, evidence, "Read the reasons in the job's trials and their logs.")
