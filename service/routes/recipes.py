"""Recipes: of a job, of all time, and in the notation of somebody's trainer."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from service import answers, paging, schemas, views
from service.auth import CanRead
from service.context import Db, require_id, storable
from service.database import Database
from service.errors import FieldError, invalid, not_found
from service.models import Recipe
from service.routes.trials import require_job
from service.store import kept, recipes
from tuner.export import ExportError, export

router = APIRouter(tags=["recipes"], dependencies=[CanRead])

MEDIA_TYPES = {"json": "application/json", "yaml": "application/yaml"}


@router.get("/jobs/{job_id}/recipes", response_model=schemas.Page[schemas.RecipeOut])
def list_of_job(job_id: str, db: Db) -> Response:
    """The recipes of a job by rank; always one page."""
    with db.read() as session:
        require_job(session, job_id)
        rows = views.RECIPE.rows(session, recipes.of_job(job_id))
    return answers.page(map(views.RECIPE.text, rows))


@router.get("/recipes", response_model=schemas.Page[schemas.RecipeOut])
def list_all(
    db: Db,
    workload: str | None = None,
    device: str | None = None,
    cursor: paging.Cursor = None,
    limit: paging.Limit = 50,
) -> Response:
    """Recipes of all jobs, deleted ones included, newest first."""
    before = paging.id_cursor(cursor)
    workload, device = storable("workload", workload), storable("device", device)
    with db.read() as session:
        query = kept.search(Recipe, workload=workload, device=device, before=before, limit=limit + 1)
        rows, following = paging.split(views.RECIPE.rows(session, query), limit, lambda recipe: recipe.id)
    return answers.page(map(views.RECIPE.text, rows), following)


@router.get("/recipes/{recipe_id}", response_model=schemas.RecipeOut)
def show(recipe_id: str, db: Db) -> Response:
    with db.read() as session:
        rows = views.RECIPE.rows(session, recipes.one(require_id("recipe", recipe_id)))
    if not rows:
        raise not_found("recipe", recipe_id)
    return answers.one(views.RECIPE.text(rows[0]))


@router.get("/recipes/{recipe_id}/export", response_class=Response)
def export_recipe(recipe_id: str, db: Db, format: str = "yaml") -> Response:  # noqa: A002 - the query parameter's name
    """The recipe as text to paste into a trainer."""
    recipe = _get(db, recipe_id)
    context = {
        "recipe": recipe.id,
        "job": recipe.job_id,
        "trial": recipe.trial,
        "status": recipe.status,
        "workload": recipe.workload,
        "device": recipe.device,
        **recipe.context,
        **_evidence(recipe),
    }
    try:
        text = export(recipe.parameters, recipe.derived, format, context=context)
    except ExportError as error:
        raise invalid([FieldError("format", format, str(error))]) from error
    return Response(text, media_type=MEDIA_TYPES.get(format, "text/plain"))


def _evidence(recipe: Recipe) -> dict[str, object]:
    names = ("value", "baseline_value", "difference", "interval", "confidence", "seeds")
    return {name: getattr(recipe, name) for name in names if getattr(recipe, name) is not None}


def _get(db: Database, recipe_id: str) -> Recipe:
    with db.read() as session:
        recipe = recipes.get(session, require_id("recipe", recipe_id))
    if recipe is None:
        raise not_found("recipe", recipe_id)
    return recipe
