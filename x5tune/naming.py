"""Jobs and recipes by the names that people type: an id, a prefix that only one has, or `last`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypedDict, TypeVar

from x5tune import wording
from x5tune.errors import NotFound, UsageError, X5tuneError
from x5tune.shapes import Job, Recipe

if TYPE_CHECKING:
    from x5tune.client import Client

LAST = "last"
SHOWN = 10
_FULL = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PREFIX = re.compile(r"[0-9a-f][0-9a-f-]{0,34}")


class NoSuchJob(X5tuneError):  # noqa: N818 - said of what was named
    """Nothing goes by this name."""


class Ambiguous(UsageError):  # noqa: N818 - said of what was named
    """Several go by this name; the message lists them."""


def find_job(client: Client, name: str) -> Job:
    """The job of this name. Raises `NoSuchJob` and `Ambiguous`."""
    text = name.strip().lower()
    if _FULL.fullmatch(text):
        return _existing(client, text)
    if text == LAST:
        newest = client.jobs_page(limit=1)["items"]
        if not newest:
            raise NoSuchJob("There is no last job: none has been submitted yet. Submit one with: x5tune submit")
        return newest[0]
    matches = _matches(client, text)
    if not matches:
        raise NoSuchJob(f"No job's id begins with {name!r}. See them with: x5tune jobs")
    if len(matches) > 1:
        raise _ambiguous(name, matches)
    return matches[0]


class _Named(TypedDict):
    id: str
    name: str


N = TypeVar("N", bound=_Named)


def find_named(items: Sequence[N], name: str, noun: str, error: type[X5tuneError]) -> N:
    """The one whose id, name, or beginning of an id this is, in that order. Raises `error` for none and for several."""
    matches = [each for each in items if each["id"] == name.lower()]
    matches = matches or [each for each in items if each["name"] == name]
    matches = matches or [each for each in items if name and each["id"].startswith(name.lower())]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        raise error(f"There is no {noun} {name!r}. See them with: x5tune {noun} list")
    lines = [f"Several {noun}s go by {name!r}; use an id:"]
    raise error("\n".join(lines + [f"  {each['id']}  {wording.one_line(each['name'])}" for each in matches]))


def find_recipe_or_job(client: Client, name: str) -> Recipe | Job:
    """What goes by this name: a job, or else a recipe (whose job may be gone). Raises `NoSuchJob` and `Ambiguous`."""
    text = name.strip().lower()
    if text == LAST:
        return find_job(client, text)
    if _FULL.fullmatch(text):
        try:
            return client.recipe(text)
        except NotFound:
            return _existing(client, text, "job or recipe")
    jobs = _matches(client, text)
    recipes = [] if jobs or not _PREFIX.fullmatch(text) else _recipes(client, text)
    if len(jobs) > 1:
        raise _ambiguous(name, jobs)
    if len(recipes) > 1:
        raise Ambiguous(f"{name!r} is the beginning of several recipes' ids; type more of it.")
    if jobs:
        return jobs[0]
    if recipes:
        return recipes[0]
    raise NoSuchJob(f"No job's or recipe's id begins with {name!r}. See the jobs with: x5tune jobs")


def _existing(client: Client, job_id: str, what: str = "job") -> Job:
    try:
        return client.job(job_id)
    except NotFound as error:
        raise NoSuchJob(f"There is no {what} {job_id!r}. See the jobs with: x5tune jobs") from error


def _matches(client: Client, text: str) -> Sequence[Job]:
    if not _PREFIX.fullmatch(text):
        return []
    return [job for job in client.jobs_page(limit=SHOWN + 1, id_prefix=text)["items"] if job["id"].startswith(text)]


def _recipes(client: Client, text: str) -> list[Recipe]:
    return list(islice((each for each in client.all_recipes() if each["id"].startswith(text)), 2))


def _ambiguous(name: str, matches: Sequence[Job]) -> Ambiguous:
    lines = [f"{name!r} is the beginning of several jobs' ids; type more of it:"]
    for job in matches[:SHOWN]:
        lines.append(f"  {job['id']}  {job['state']:<9}  {wording.one_line(job['name'])}")
    if len(matches) > SHOWN:
        lines.append("  …")
    return Ambiguous("\n".join(lines))
