"""The service from Python: every call of its REST API, typed, synchronous.

client = x5tune.Client()                       # the service of this machine, or X5TUNE_URL and X5TUNE_TOKEN
job = client.submit({"workload": "digits-cnn", "budget": {"trials": 24}})
job = client.wait(job["id"], timeout_s=3600)
print(client.export(client.recipes(job["id"])[0]["id"], "args"))
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self, cast
from urllib.parse import quote

import httpx

from x5tune import connection
from x5tune.errors import ApiError, InvalidRequest, InvalidSpec, NotFound, Unauthorised, Unreachable, WaitTimeout
from x5tune.retrying import TIMEOUT, Retrying
from x5tune.shapes import (
    ENDED,
    Confirmation,
    DryRun,
    Event,
    Frontier,
    Job,
    NewToken,
    Page,
    Recipe,
    Runner,
    Schedule,
    Scope,
    Spec,
    Token,
    Trace,
    Trial,
    Workload,
)
from x5tune.sse import last_id, read_events

PAGE = 200
QUIET_S = 35.0  # the service says something every 10 s
PATIENCE_S = 60.0
BODY_STATUSES = (400, 413, 415, 422)


class Client:
    """One service. Safe to use from several threads; `close` it, or use it in a `with` block.

    Without `url` and `token`: X5TUNE_URL and X5TUNE_TOKEN, else what `x5tune serve` left in X5TUNE_HOME. Every call
    raises `Unreachable`, `Unauthorised`, `ApiError`; calls about a specification also `InvalidSpec`.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout_s: float = TIMEOUT) -> None:
        found = connection.find(url, token)
        self.url = found.url
        headers = {"Accept": "application/json"}
        if found.token is not None:
            headers["Authorization"] = f"Bearer {found.token}"
        self._http = httpx.Client(
            base_url=found.url,
            headers=headers,
            timeout=timeout_s,
            trust_env=not found.is_local,  # a proxy cannot reach this machine's own services
            verify=found.url.startswith("https:"),  # without TLS, reading the certificates is time lost
        )
        self._retrying = Retrying(self._http, self.url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(self, spec: Spec, idempotency_key: str | None = None) -> Job:
        """Submit a job. Tried again when the connection breaks: the key makes sure that there is one job only."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return cast(Job, self._send_spec(spec, headers, {}))

    def fork(self, job_id: str, changes: Spec | None = None, idempotency_key: str | None = None) -> Job:
        """A new job from another's specification with `changes` merged in; None takes a key out. It learns from it."""
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return cast(Job, self._send_spec(changes or {}, headers, {}, f"/v1/jobs/{_segment(job_id)}/fork"))

    def validate(self, spec: Spec) -> DryRun:
        """Check a specification and estimate what it takes; nothing is stored."""
        return cast(DryRun, self._send_spec(spec, {}, {"dry_run": "true"}))

    def jobs(
        self,
        *,
        state: str | None = None,
        workload: str | None = None,
        q: str | None = None,
        id_prefix: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Jobs, newest first: all of them, or the first `limit`. `q` is text in the name."""
        query = {"state": state, "workload": workload, "q": q, "id_prefix": id_prefix}
        return cast(Iterator[Job], self._items("/v1/jobs", query, limit))

    def jobs_page(self, *, limit: int = 50, cursor: str | None = None, **query: str | None) -> Page[Job]:
        """One page of jobs as the service answers it; `query` as for `jobs`."""
        return cast(Page[Job], self._json("GET", "/v1/jobs", params={**query, "limit": str(limit), "cursor": cursor}))

    def job(self, job_id: str) -> Job:
        return cast(Job, self._json("GET", f"/v1/jobs/{_segment(job_id)}"))

    def wait(self, job_id: str, timeout_s: float | None = None) -> Job:
        """The job once it has ended, however it ended. Raises `WaitTimeout`; outlasts a restart of the service."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s, reached_at = 0.1, time.monotonic()
        while True:
            try:
                job = self.job(job_id)
                reached_at = time.monotonic()
                if job["state"] in ENDED:
                    return job
            except Unreachable:
                if time.monotonic() - reached_at > PATIENCE_S:
                    raise
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise WaitTimeout(f"Job {job_id} had not ended after {timeout_s:g} s; it goes on.")
            time.sleep(pause_s if left_s is None else min(pause_s, left_s))
            pause_s = min(2.0, pause_s * 1.5)

    def cancel(self, job_id: str) -> Job:
        """Ask for the end of a job: a running one winds down and keeps its recipes."""
        return cast(Job, self._json("POST", f"/v1/jobs/{_segment(job_id)}/cancel"))

    def delete(self, job_id: str, *, recipes: bool = False) -> None:
        """Delete an ended job with its study; its recipes too where `recipes` says so."""
        params = {"recipes": "true"} if recipes else {}
        self._send("DELETE", f"/v1/jobs/{_segment(job_id)}", params=params)

    def trials(self, job_id: str) -> Iterator[Trial]:
        return cast(Iterator[Trial], self._items(f"/v1/jobs/{_segment(job_id)}/trials", {}, None))

    def trial(self, job_id: str, number: int) -> Trial:
        return cast(Trial, self._json("GET", f"/v1/jobs/{_segment(job_id)}/trials/{number}"))

    def traces(self, job_id: str, number: int) -> list[Trace]:
        """What was measured over time, for each probe of a trial that has ended."""
        path = f"/v1/jobs/{_segment(job_id)}/trials/{number}/telemetry"
        return list(cast(Iterator[Trace], self._items(path, {}, None)))

    def confirmations(self, job_id: str) -> list[Confirmation]:
        """The runs on fresh seeds that back the recipes."""
        return list(cast(Iterator[Confirmation], self._items(f"/v1/jobs/{_segment(job_id)}/confirmations", {}, None)))

    def recipes(self, job_id: str) -> list[Recipe]:
        """The job's recipes, the best first."""
        return self.recipes_page(job_id)["items"]

    def recipes_page(self, job_id: str) -> Page[Recipe]:
        """The job's recipes as the service answers them: always one page."""
        return cast(Page[Recipe], self._json("GET", f"/v1/jobs/{_segment(job_id)}/recipes"))

    def all_recipes(self, *, workload: str | None = None, device: str | None = None) -> Iterator[Recipe]:
        """The recipes of all jobs, deleted ones included, newest first."""
        return cast(Iterator[Recipe], self._items("/v1/recipes", {"workload": workload, "device": device}, None))

    def recipe(self, recipe_id: str) -> Recipe:
        return cast(Recipe, self._json("GET", f"/v1/recipes/{_segment(recipe_id)}"))

    def export(self, recipe_id: str, format: str = "yaml") -> str:  # noqa: A002 - the word that users see
        """A recipe as text to paste into a trainer: yaml, json, args or env."""
        path = f"/v1/recipes/{_segment(recipe_id)}/export"
        return self._send("GET", path, params={"format": format}, headers={"Accept": "*/*"}).text

    def events(
        self,
        job_id: str,
        after: int = 0,
        *,
        patience_s: float = PATIENCE_S,
        on_break: Callable[[str], None] | None = None,
    ) -> Iterator[Event]:
        """What happens to a job, from the first event behind `after` to its end, as it happens, without a gap.

        A broken connection is made again for up to `patience_s`, then `Unreachable`; `on_break` is told each time.
        """
        broken_since: float | None = None
        while True:
            seen = after
            try:
                for event in self._stream(job_id, after):
                    after, broken_since = event["id"], None
                    yield event
                    if event["type"] == "end":
                        return
                if after == seen and self.job(job_id)["state"] in ENDED:
                    return
                reason = "the stream ended"
            except (Unreachable, ApiError) as error:
                if isinstance(error, ApiError) and error.status < 500:
                    raise
                reason = str(error)
                now = time.monotonic()
                broken_since = broken_since or now
                if now - broken_since >= patience_s:
                    raise
            if on_break is not None:
                on_break(reason)
            time.sleep(0.5)

    def workloads(self) -> list[Workload]:
        return self.workloads_page()["items"]

    def workloads_page(self) -> Page[Workload]:
        """The built-in workloads as the service answers them: always one page."""
        return cast(Page[Workload], self._json("GET", "/v1/workloads"))

    def workload(self, name: str) -> Workload:
        return cast(Workload, self._json("GET", f"/v1/workloads/{_segment(name)}"))

    def frontiers(self, *, workload: str | None = None, device: str | None = None) -> Iterator[Frontier]:
        """The largest micro-batches that were proven to fit, newest first."""
        return cast(Iterator[Frontier], self._items("/v1/frontiers", {"workload": workload, "device": device}, None))

    def frontiers_page(self, *, workload: str | None = None, limit: int = PAGE) -> Page[Frontier]:
        """One page of them as the service answers it."""
        params = {"workload": workload, "limit": str(limit)}
        return cast(Page[Frontier], self._json("GET", "/v1/frontiers", params=params))

    def schedules(self) -> Iterator[Schedule]:
        """All schedules, the newest first, each with its last night."""
        return cast(Iterator[Schedule], self._items("/v1/schedules", {}, None))

    def schedule(self, schedule_id: str) -> Schedule:
        """A schedule with its nights."""
        return cast(Schedule, self._json("GET", f"/v1/schedules/{_segment(schedule_id)}"))

    def create_schedule(self, rules: Mapping[str, Any]) -> Schedule:
        """Submit `rules["spec"]` at every due time of `rules["cron"]`; `name` is needed too.

        Raises `InvalidSpec` for rules or a specification that the service refuses.
        """
        return cast(Schedule, self._send_spec(dict(rules), {}, {}, "/v1/schedules"))

    def change_schedule(self, schedule_id: str, changes: Mapping[str, Any]) -> Schedule:
        """Change some of a schedule's rules; `{"state": "paused"}` pauses it."""
        return cast(Schedule, self._json("PATCH", f"/v1/schedules/{_segment(schedule_id)}", json=dict(changes)))

    def run_schedule(self, schedule_id: str) -> Job:
        """Submit a run now."""
        return cast(Job, self._json("POST", f"/v1/schedules/{_segment(schedule_id)}/run"))

    def delete_schedule(self, schedule_id: str) -> None:
        """Remove a schedule; its jobs and recipes stay."""
        self._send("DELETE", f"/v1/schedules/{_segment(schedule_id)}")

    def runners(self) -> list[Runner]:
        return list(cast(Iterator[Runner], self._items("/v1/runners", {}, None)))

    def tokens(self) -> Iterator[Token]:
        """The tokens that were not revoked, newest first."""
        return cast(Iterator[Token], self._items("/v1/tokens", {}, None))

    def tokens_page(self, *, limit: int = PAGE, cursor: str | None = None) -> Page[Token]:
        return cast(Page[Token], self._json("GET", "/v1/tokens", params={"limit": str(limit), "cursor": cursor}))

    def create_token(self, name: str, scope: Scope = "submit", expires_at: str | None = None) -> NewToken:
        """Make a token; `expires_at` is RFC 3339. The secret is in the answer and nowhere else."""
        body = json.dumps({"name": name, "scope": scope, "expires_at": expires_at})
        return cast(NewToken, self._json("POST", "/v1/tokens", content=body, headers=_JSON_BODY))

    def revoke_token(self, token_id: str) -> None:
        self._send("DELETE", f"/v1/tokens/{_segment(token_id)}")

    def _send_spec(
        self, spec: Spec, headers: Mapping[str, str], params: Mapping[str, str], path: str = "/v1/jobs"
    ) -> Any:
        # Not by httpx, which refuses NaN and infinity: the service says which field holds them.
        content = json.dumps(spec, default=_no_json)
        try:
            return self._json("POST", path, content=content, headers={**headers, **_JSON_BODY}, params=params)
        except InvalidRequest as error:
            raise InvalidSpec(error.problem) from None

    def _items(self, path: str, query: Mapping[str, str | None], limit: int | None) -> Iterator[Any]:
        cursor, left = None, limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = self._json("GET", path, params={**query, "limit": str(size), "cursor": cursor})
            yield from page["items"]
            cursor = page["next"]
            left = None if left is None else left - len(page["items"])
            if cursor is None:
                return

    def _json(self, method: str, path: str, **options: Any) -> Any:
        answer = self._send(method, path, **options)
        try:
            return answer.json()
        except ValueError as error:
            raise Unreachable(self.url, "what answers there is not x5tune.") from error

    def _send(
        self, method: str, path: str, *, params: Mapping[str, str | None] | None = None, **options: Any
    ) -> httpx.Response:
        given = {name: value for name, value in (params or {}).items() if value is not None}
        answer = self._retrying.send(method, path, params=given, **options)
        if answer.is_success:
            return answer
        raise self._refusal(answer)

    def _stream(self, job_id: str, after: int) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream", **last_id(after)}
        timeout = httpx.Timeout(TIMEOUT, read=QUIET_S)
        path = f"/v1/jobs/{_segment(job_id)}/events"
        try:
            with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    raise self._refusal(answer)
                yield from read_events(answer.iter_text())
        except (httpx.TransportError, httpx.StreamError) as error:
            raise self._retrying.unreachable(error) from error

    def _refusal(self, answer: httpx.Response) -> ApiError | Unreachable:
        problem = _problem(answer)
        if problem is None:
            return Unreachable(self.url, f"what answers there is not x5tune (HTTP {answer.status_code}).")
        if answer.status_code == 401 and "Authorization" not in self._http.headers:
            return Unauthorised(problem, f"The service at {self.url} needs a token, and none is known for it.")
        kind = {401: Unauthorised, 403: Unauthorised, 404: NotFound}.get(answer.status_code, ApiError)
        if answer.status_code in BODY_STATUSES:
            kind = InvalidRequest
        return kind(problem)


_JSON_BODY = {"Content-Type": "application/json"}


def _problem(answer: httpx.Response) -> Any:
    """The problem that an answer is; None where something else than x5tune answered."""
    try:
        content = answer.json()
    except ValueError:
        return None
    if not isinstance(content, dict) or not isinstance(content.get("status"), int):
        return None
    blank = {"type": "about:blank", "title": "", "detail": "", "instance": "", "errors": []}
    return content | {name: value for name, value in blank.items() if content.get(name) is None}


def _segment(text: str) -> str:
    """`text` as one part of a path, whatever it holds."""
    quoted = quote(text, safe="", errors="replace")
    return quoted if quoted.strip(".") else quoted.replace(".", "%2E") or "%20"


def _no_json(value: object) -> Any:
    raise TypeError(f"A specification holds numbers, text, booleans, null, lists and mappings, not {value!r}.")
