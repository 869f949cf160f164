"""Recipes: kept for ever, whatever becomes of their job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from service.models import Recipe
from tuner import records


def get(session: Session, recipe_id: str) -> Recipe | None:
    return session.get(Recipe, recipe_id)


def one(recipe_id: str) -> sa.Select[Recipe]:
    return sa.select(Recipe).where(Recipe.id == recipe_id)


def of_job(job_id: str, *, limit: int = 200) -> sa.Select[Recipe]:
    """The recipes of a job by rank."""
    return sa.select(Recipe).where(Recipe.job_id == job_id).order_by(Recipe.rank, Recipe.trial).limit(limit)


def replace(
    session: Session, job_id: str, workload: str, drafts: Sequence[records.RecipeDraft], context: Mapping[str, Any]
) -> Sequence[Recipe]:
    """Make these the job's recipes. The recipe of a trial keeps its id while the trial stays recommended."""
    known = {recipe.trial: recipe for recipe in session.scalars(of_job(job_id))}
    kept = []
    for draft in drafts:
        recipe = known.pop(draft.trial, None)
        if recipe is None:
            recipe = Recipe(job_id=job_id, trial=draft.trial, workload=workload)
            session.add(recipe)
        recipe.rank = draft.rank
        recipe.status = draft.status
        recipe.device = draft.device
        recipe.parameters = dict(draft.parameters)
        recipe.derived = dict(draft.derived)
        recipe.value = draft.value
        recipe.baseline_value = draft.baseline_value
        recipe.difference = draft.difference
        recipe.interval = None if draft.interval is None else list(draft.interval)
        recipe.confidence = draft.confidence
        recipe.seeds = draft.seeds
        recipe.memory = dict(draft.memory)
        recipe.spend = dict(draft.spend)
        recipe.context = dict(context)
        kept.append(recipe)
    for recipe in known.values():
        session.delete(recipe)
    session.flush()
    return kept


def delete_of_job(session: Session, job_id: str) -> None:
    session.execute(sa.delete(Recipe).where(Recipe.job_id == job_id))
