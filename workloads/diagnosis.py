"""Why nothing trains: checks of data, loss, gradients, learning, evaluation and a short run, in the order of causes."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from workloads import checks_data, checks_evaluation, checks_gradients, checks_learning, checks_run
from workloads.contract import ProbeConfig
from workloads.subject import Subject
from workloads.trainable import Trainable
from workloads.verdicts import Verdict, ok, problem, skipped

SECONDS = 60.0
FATAL = ("data_not_finite", "loss_not_finite")
"""After these nothing else can be said."""

BEFORE: tuple[Callable[[Subject], Verdict], ...] = (
    checks_data.data_are_steady,
    checks_data.tokenizer_comes_round,
    checks_gradients.loss_is_sound,
    checks_data.inputs_reach_the_loss,
    checks_data.samples_are_apart,
    checks_gradients.weights_get_gradients,
    checks_gradients.start_is_at_chance,
    checks_gradients.decay_spares_norms,
    checks_learning.one_batch_is_learnt,
)
LEARNT: tuple[Callable[[checks_learning.Lesson], Verdict], ...] = (
    checks_evaluation.statistics_are_current,
    checks_learning.dropout_leaves_enough,
    checks_learning.labels_follow_from_inputs,
    checks_evaluation.evaluation_is_steady,
    checks_evaluation.metric_follows_the_model,
    checks_evaluation.evaluation_is_like_training,
)
RUN: tuple[Callable[[checks_run.ShortRun], Verdict], ...] = (
    checks_run.metric_is_reported,
    checks_run.scale_holds,
    checks_run.rate_is_right,
    checks_run.clip_is_rare,
    checks_run.batch_fits_the_noise,
    checks_run.activations_are_alive,
    checks_run.data_come_in_time,
)


def diagnose(
    workload: Trainable, config: ProbeConfig, tell: Callable[[list[dict[str, Any]]], object] = lambda _: None
) -> list[dict[str, Any]]:
    """One verdict a check, as plain values, the likeliest cause first among those that are problems.

    `config.fit` holds `diagnose: {metric, direction, seconds}`, the metric null where nobody has named one. Checks are
    made in fp32 but for the short run, which is the job's own. What the workload raises is a verdict too. `tell` hears
    after each check what is known so far.
    """
    asked: Mapping[str, Any] = (config.fit or {}).get("diagnose") or {}
    seconds = float(asked.get("seconds") or SECONDS)
    config = replace(config, fit=None, resume_dir=None, checkpoint_dir=None, resume_at=None)
    subject = Subject(workload, config, asked["metric"], asked["direction"], seconds)
    found: list[Verdict] = []
    for check in BEFORE:
        found.append(_made(check, subject))
        tell(_plain(found))
        if found[-1].code in FATAL or found[-1].evidence.get("is_fatal"):
            return _plain(found)
    if not any(verdict.level == "problem" for verdict in found):
        found += _each(checks_learning.Lesson, subject, LEARNT)
        tell(_plain(found))
    found += _each(checks_run.ShortRun, subject, RUN)
    return _plain(_told_once(found))


def _told_once(found: list[Verdict]) -> list[Verdict]:
    """Without what a check before has found in the same words."""
    first = {(each.code, each.message): each for each in reversed(found)}
    return [each for each in found if first[each.code, each.message] is each]


def _plain(found: list[Verdict]) -> list[dict[str, Any]]:
    """As JSON can hold them: a number that is not finite is text."""
    return [asdict(replace(verdict, evidence=_finite(verdict.evidence))) for verdict in found]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _each(
    kind: Callable[[Subject], Any], subject: Subject, checks: tuple[Callable[[Any], Verdict], ...]
) -> list[Verdict]:
    """The verdicts of checks that share one training; of one that raises, that it does."""
    shared: list[Any] = []

    def begin(subject: Subject) -> Verdict:
        shared.append(kind(subject))
        return ok(kind.__name__, "")

    begun = _made(begin, subject)
    return [_made(check, shared[0]) for check in checks] if shared else [begun]


def _made(check: Callable[[Any], Verdict], of: Any) -> Verdict:
    """The verdict of a check; an error of the workload is one, an error of the check itself skips it."""
    try:
        return check(of)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        name = check.__name__
        if "workloads/checks_" in last.filename.replace("\\", "/"):
            return skipped(name, f"This could not be checked: {type(error).__name__}: {error}")
        message = f"{type(error).__name__}: {str(error)[:300]} ({last.filename.rpartition('/')[2]}:{last.lineno})."
        code = "no_gradient" if "does not depend on the model's parameters" in message else "crashes"
        return problem(code, message, "Mend this first; it happens while training.", check=name, is_fatal=True)
