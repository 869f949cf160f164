"""A job seen through its events: what stands now, and what is worth saying of each event. No clocks, no output."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from x5tune import wording
from x5tune.shapes import ENDED, Event, Job, Measured

SETTLED = 3  # ends of trials that a guess at the time left needs


@dataclass(frozen=True, slots=True)
class Line:
    """Something worth saying: when (RFC 3339), what, and which outcome or state it is about (for its colour)."""

    time: str
    text: str
    about: str = ""


@dataclass
class Pace:
    """How fast a phase goes: since when, and how much was done by then."""

    since: datetime
    done: int


@dataclass
class Following:
    """What a job's events add up to. `job` is the service's word; `refresh` renews it."""

    job: Job
    state: str = "queued"
    phase: str | None = None
    done: int = 0
    total: int | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    running: set[int] = field(default_factory=set)
    paused: set[int] = field(default_factory=set)
    baseline: Measured | None = None
    best: Measured | None = None
    _baseline_number: int | None = None
    _confirmed: set[tuple[int, int]] = field(default_factory=set)
    _confirm_total: int = 0
    _pace: Pace | None = None
    _proven: int | None = None
    _waiting: str | None = None
    _has_run: bool = False
    _reason: str = ""

    def __post_init__(self) -> None:
        self.state = self.job["state"]
        self.total = self.job["progress"]["total"]

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def progress(self) -> tuple[int, int | None]:
        """Done and planned of the phase that runs."""
        if self.phase == "confirm":
            return len(self._confirmed), self._confirm_total
        return self.done + len(self.paused), self.total

    def refresh(self, job: Job) -> list[Line]:
        """Take in what the service says of the job now; says why it waits when that is new."""
        self.job = job
        waiting = job["waiting_for"]
        message = None if waiting is None or waiting["code"] == "starting" else wording.one_line(waiting["message"])
        is_news, self._waiting = message is not None and message != self._waiting, message
        return [Line("", f"waiting: {message}", "waiting")] if is_news else []

    def elapsed_s(self, now: datetime) -> float | None:
        """Since the job was first taken up; None before that."""
        started, ended = self.job["started_at"], self.job["ended_at"]
        if started is None:
            return None
        until = now if ended is None else wording.moment(ended)
        return max(0.0, (until - wording.moment(started)).total_seconds())

    def left_s(self, now: datetime) -> float | None:
        """A guess at the time left in this phase, from its pace and the budget; None where nothing tells."""
        guesses = []
        done, total = self.progress
        if self._pace is not None and total is not None and done - self._pace.done >= SETTLED:
            spent = (now - self._pace.since).total_seconds()
            guesses.append(spent / (done - self._pace.done) * max(0, total - done))
        cap = (self.job["resolved"].get("budget") or {}).get("seconds")
        elapsed = self.elapsed_s(now)
        if isinstance(cap, int | float) and elapsed is not None:
            guesses.append(max(0.0, cap - elapsed))
        return min(guesses) if guesses and not self.has_ended else None

    def apply(self, event: Event) -> Line | None:
        """Take in an event; what it is worth saying of it, if anything."""
        data, time = event["data"], event["time"]
        if event["type"] == "state":
            return self._on_state(time, data)
        if event["type"] == "phase":
            return self._on_phase(time, data)
        if event["type"] == "trial":
            return self._on_confirmation(time, data) if data.get("confirmation") else self._on_trial(time, data)
        if event["type"] == "recipe":
            return self._on_recipe(time, data)
        if event["type"] == "log":
            return self._on_log(time, data)
        if event["type"] == "end":
            self.state = str(data.get("state", self.state))
        return None

    def _on_state(self, time: str, data: dict[str, Any]) -> Line | None:
        self.state = str(data.get("state", self.state))
        if self.state in ENDED:
            return None
        self.running.clear()
        if data.get("cancel_requested"):
            return Line(time, "cancelling: the job winds down and keeps its recipes", "cancelled")
        self._pace = None
        if self.state == "running":
            self._has_run = True
            attempt = data.get("attempt", 1)
            return Line(time, "running" if attempt == 1 else f"running again (attempt {attempt})", "running")
        reason = data.get("reason")
        again = " again" if self._has_run else ""
        return Line(time, f"queued{again}" + (f": {wording.one_line(reason)}" if reason else ""))

    def _on_phase(self, time: str, data: dict[str, Any]) -> Line:
        if data.get("range_test"):
            return Line(time, f"rates: {wording.rates(data['range_test'])}", "phase")
        before, self.phase = self.phase, str(data.get("phase"))
        total = data.get("total")
        if self.phase == "fit":
            return Line(time, f"fit: {fit_words(data)}", "phase")
        if self.phase == "confirm":
            is_more = before == "confirm" and self._confirm_total not in (0, total)
            self._confirm_total = int(total or 0)
            text = f"confirm: {wording.plural(self._confirm_total, 'run')} of the finalists and the baseline"
            text = f"confirm: undecided, so {self._confirm_total} runs altogether" if is_more else text
        else:
            self.total = total or self.total
            text = f"{self.phase}: up to {wording.plural(total, 'trial')}" if total else self.phase
        if before != self.phase or self._pace is None:
            self._pace = Pace(wording.moment(time), self.progress[0])
        return Line(time, text, "phase")

    def _on_trial(self, time: str, data: dict[str, Any]) -> Line | None:
        trial = int(data.get("number", -1))
        if data.get("is_baseline"):
            self._baseline_number = trial
        self.running.discard(trial)
        self.paused.discard(trial)
        name = f"trial {trial}" + (" (baseline)" if trial == self._baseline_number else "")
        value = wording.measured(data.get("value"), str(data.get("value_kind")))
        if data.get("state") == "paused":
            self.paused.add(trial)
            return Line(time, f"{name}: paused at report {data.get('index')}, {value}", "paused")
        if data.get("state") != "ended":
            self.running.add(trial)
            return Line(time, f"{name}: {again_words(data)}", str(data["probe"])) if data.get("probe") else None
        outcome = str(data.get("outcome"))
        self.outcomes[outcome] += 1
        self.done += outcome != "lost"
        text = f"{name}: {wording.words(outcome)}" + (f", {value}" if value != wording.NOTHING else "")
        if outcome == "ok":
            return Line(time, text + self._standing(trial, data), outcome)
        self._reason = wording.one_line(data.get("reason") or "")
        return Line(time, text + (f" ({self._reason})" if self._reason else ""), outcome)

    def _standing(self, trial: int, data: dict[str, Any]) -> str:
        """Note a finished trial; what is to be said of it next to the others."""
        found = Measured(trial=trial, value=data.get("value"), value_kind=data.get("value_kind", "missing"))
        way = wording.direction(self.job)
        if trial == self._baseline_number:
            self.baseline = found
        if found["value"] is None or not self._beats_best(found["value"], way):
            return ""
        self.best = found
        if trial == self._baseline_number:
            return ""
        gain = wording.best_so_far(found, self.baseline, way)
        return ", the best so far" + (f", {gain} than the baseline" if gain.endswith(("better", "worse")) else "")

    def _beats_best(self, value: float, way: str) -> bool:
        if self.best is None or self.best["value"] is None:
            return True
        return value < self.best["value"] if way == "minimize" else value > self.best["value"]

    def _on_confirmation(self, time: str, data: dict[str, Any]) -> Line:
        trial = int(data.get("trial", -1))
        self._confirmed.add((trial, int(data.get("seed", 0))))
        name = "the baseline" if data.get("is_baseline") else f"trial {trial}"
        outcome = str(data.get("outcome"))
        value = wording.measured(data.get("value"), str(data.get("value_kind")))
        reason = wording.one_line(data.get("reason") or "")
        result = value if outcome == "ok" else wording.words(outcome) + (f" ({reason})" if reason else "")
        count = f"{len(self._confirmed)} of {max(self._confirm_total, len(self._confirmed))}"
        return Line(time, f"confirmation {count}: {name}, {result}", outcome)

    def _on_recipe(self, time: str, data: dict[str, Any]) -> Line | None:
        """Only what is proven: a provisional recipe is the best so far, said of its trial already."""
        trial = data.get("trial")
        if data.get("status") != "proven" or data.get("rank") != 1 or trial == self._proven:
            return None
        self._proven = trial
        return Line(time, f"proven: the recipe of trial {trial}, {wording.number(data.get('value'))}", "proven")

    def _on_log(self, time: str, data: dict[str, Any]) -> Line | None:
        """The last line of what a trial printed, unless it is the reason that has just been given."""
        lines = [wording.one_line(line) for line in wording.clean(data.get("text", "")).splitlines() if line.strip()]
        if lines and data.get("trial") is None:
            return Line(time, lines[-1], "log")
        if not lines or lines[-1] in self._reason:
            return None
        return Line(time, f"trial {data.get('trial')} said: {lines[-1][:300]}", "log")


def again_words(data: dict[str, Any]) -> str:
    """How a probe ended whose trial goes on with another one, from the trial's event."""
    reason = wording.one_line(data.get("reason") or "")
    ended = wording.words(str(data["probe"])) + (f" ({reason})" if reason else "")
    if data["probe"] != "out_of_memory":
        return f"{ended}; it goes on"
    return f"{ended}; once more with {wording.assignments(data['derived'], ('micro_batch', 'accumulation'))}"


def fit_words(data: dict[str, Any]) -> str:
    """What phase `fit` has found out, from its event."""
    fit = data.get("fit")
    if not fit:
        return f"the largest micro-batch within the memory limit, with at most {data.get('total')} proofs"
    if fit["state"] == "skipped":
        return f"skipped: {wording.one_line(fit['reason'] or '')}"
    if fit.get("lowered_to"):
        return f"at most a micro-batch of {fit['lowered_to']} from now on: what was proven has run out of memory"
    proof = fit["proof"]
    if proof is None:
        return told_before(fit)
    limit = wording.mebibytes(fit["limit_bytes"])
    text = f"a micro-batch of {proof['micro_batch']} "
    text += "with activations computed again " if fit.get("checkpointing") else ""
    if proof["peak_bytes"] is not None:
        text += f"takes {wording.mebibytes(proof['peak_bytes'])} of {limit}"
        text += "" if proof["fits"] else ", which is too much"
    else:
        text += f"runs out of memory in {proof['stage']}, under a limit of {limit}"
    text += "; that is the largest" if fit["state"] == "done" and proof["fits"] else ""
    return text + wording.left_out(fit.get("left_out"))


def told_before(fit: dict[str, Any]) -> str:
    """What phase `fit` knows without a proof of its own."""
    if fit["state"] != "done":
        return "the memory of a step is predicted"
    text = f"a micro-batch of {fit['micro_batch']} fits, as an earlier job has proven"
    return text + wording.left_out(fit.get("left_out"))
