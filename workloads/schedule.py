"""Warm-up, then cosine: the learning rate of each step."""

from __future__ import annotations

import math

from workloads.settings import Settings


def learning_rate(settings: Settings, step: int, progress: float, steps: int | None) -> float:
    """The learning rate that step `step` (1-based) is taken with; `progress` (0..1) is the run done after it.

    Linear warm-up from `warmup_start`, reaching `lr` at the end of the warm-up; then half a cosine period down to
    `lr_min`, reached at progress 1 (SGDR, Loshchilov and Hutter 2017, arXiv:1608.03983, eq. 5, without restarts).
    A warm-up given in steps takes its fraction from `steps`, the length of the run; where that is None, because the
    clock ends the run, the warm-up counts steps and the cosine spans the whole run.
    """
    if settings.warmup_steps is None:
        warm, done = settings.warmup, progress
    elif steps is None:
        done = step / settings.warmup_steps if step < settings.warmup_steps else 1.0
        if done < 1:
            return settings.warmup_start + (settings.lr - settings.warmup_start) * done
        warm, done = 0.0, progress
    else:
        warm, done = settings.warmup_steps / steps, progress
    if done < warm:
        return settings.warmup_start + (settings.lr - settings.warmup_start) * done / warm
    cosine_progress = (done - warm) / (1 - warm) if warm < 1 else 0.0
    return settings.lr_min + (settings.lr - settings.lr_min) * (1 + math.cos(math.pi * cosine_progress)) / 2
