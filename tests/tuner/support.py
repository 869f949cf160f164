"""What the tests of this folder share: jobs, an observer that records, slots that follow a script, and a workload
that does what its `code` parameter says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import psutil

from tuner.assignment import Assignment, ProbeEnd, SlotReport, SlotSetup
from tuner.checkpoints import Checkpoints
from tuner.coordinator import Coordinator
from tuner.device import Device
from tuner.earlier_jobs import Learnt
from tuner.jobspec import ResolvedJob
from tuner.phases import Decision
from tuner.probe_process import Exited, ProbeHost, Report
from tuner.records import (
    Confirmation,
    Finding,
    Outcome,
    Phase,
    Point,
    ProbeEnded,
    ProbeRecord,
    RecipeDraft,
    StopReason,
    TrialEnded,
    TrialStarted,
    Value,
)
from tuner.reports import Mark
from tuner.search import Closed, Search
from tuner.spec import resolve

CPU = Device("cpu", "test CPU")
PROBE_KEYS = ("resume_dir", "resume_at", "checkpoint_dir")


def job(**spec: Any) -> ResolvedJob:
    """A job on `quadratic`, without confirmation and pruning unless asked for."""
    return resolve({"workload": "quadratic", "confirm": {"seeds": 0}, "pruner": "none", **spec}).job


def closed(
    number: int,
    value: float | None = 1.0,
    outcome: Outcome = Outcome.OK,
    *,
    is_baseline: bool = False,
    seconds: float = 10.0,
    **parameters: Any,
) -> Closed:
    return Closed(number, {"lr": 0.001 * (number + 1), **parameters}, is_baseline, outcome, value, 1.0, seconds)


def confirmation(trial: int, seed: int, value: float | None, outcome: Outcome = Outcome.OK) -> Confirmation:
    return Confirmation(trial, trial == 0, seed, outcome, None, Value.of(value), "test", None)


@dataclass
class Clock:
    """Time that moves when told."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class RecordingObserver:
    """Keeps what it was told. `at` holds what to do when a named call comes (raise, cancel, ...)."""

    started: list[TrialStarted] = field(default_factory=list)
    ended: list[TrialEnded] = field(default_factory=list)
    points: list[tuple[int, Point]] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)
    recipes: list[Sequence[RecipeDraft]] = field(default_factory=list)
    phases: list[Phase] = field(default_factory=list)
    decided: list[ResolvedJob] = field(default_factory=list)
    fits: list[Mapping[str, Any]] = field(default_factory=list)
    precisions: list[Mapping[str, Any]] = field(default_factory=list)
    rates: list[Mapping[str, Any]] = field(default_factory=list)
    diagnoses: list[tuple[Sequence[Finding], ProbeRecord]] = field(default_factory=list)
    again: list[tuple[int, Mapping[str, Any]]] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    probes: list[tuple[int, ProbeEnded]] = field(default_factory=list)
    gone_on: list[int] = field(default_factory=list)
    stop: StopReason | None = None
    at: dict[str, Callable[[], None]] = field(default_factory=dict)

    def _call(self, name: str) -> None:
        self.at.get(name, lambda: None)()

    def phase_started(self, phase: Phase, total: int) -> None:
        self.phases.append(phase)

    def fit_measured(self, fit: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        self._call("fit_measured")
        self.fits.append(fit)

    def precision_measured(self, found: Mapping[str, Any], probe: ProbeRecord) -> None:
        self._call("precision_measured")
        self.precisions.append(found)

    def rates_tested(self, found: Mapping[str, Any], probe: ProbeRecord | None) -> None:
        self._call("rates_tested")
        self.rates.append(found)

    def diagnosed(self, findings: Sequence[Finding], probe: ProbeRecord) -> None:
        self._call("diagnosed")
        self.diagnoses.append((findings, probe))

    def trial_started(self, started: TrialStarted) -> None:
        self._call("trial_started")
        self.started.append(started)

    def probe_ended(self, number: int, ended: ProbeEnded) -> None:
        self._call("probe_ended")
        self.probes.append((number, ended))
        if not ended.is_paused:
            self.again.append((number, ended.derived))

    def trial_goes_on(self, number: int) -> None:
        self._call("trial_goes_on")
        self.gone_on.append(number)

    def points_reported(self, number: int, points: Sequence[Point]) -> None:
        self._call("points_reported")
        self.points.extend((number, point) for point in points)

    def trial_noted(self, number: int, text: str) -> None:
        self.notes.append((number, text))

    def trial_ended(self, ended: TrialEnded) -> None:
        self._call("trial_ended")
        self.ended.append(ended)

    def confirmation_ended(self, confirmation: Confirmation) -> None:
        self._call("confirmation_ended")
        self.confirmations.append(confirmation)

    def recipes_found(self, recipes: Sequence[RecipeDraft]) -> None:
        self.recipes.append(list(recipes))

    def stop_requested(self) -> StopReason | None:
        self._call("stop_requested")
        return self.stop

    def job_decided(self, job: ResolvedJob) -> None:
        self._call("job_decided")
        self.decided.append(job)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(str(ended.outcome) for ended in self.ended)


Curve = Callable[[Assignment], Sequence[float]]
End = Callable[[Assignment], ProbeEnd | None]


def bowl(assignment: Assignment) -> list[float]:
    """A curve of four points that falls towards a value which is best for lr = 0.01."""
    lr = float(assignment.probe["parameters"]["lr"])
    best = abs(lr - 0.01) + 1e-4 * (assignment.probe["seed"] % 7)
    return [best + 1.0 / index for index in (1, 2, 3, 4)]


def long_bowl(assignment: Assignment) -> list[float]:
    """The same with as many points as the horizon has reports."""
    best = bowl(assignment)[-1] - 1.0 / 4
    return [best + 1.0 / index for index in range(1, assignment.probe["fidelity"]["reports"] + 1)]


def trains(assignment: Assignment) -> ProbeEnd | None:
    """An end for every run that was not decided by its curve."""
    return None


def saves(assignment: Assignment) -> ProbeEnd | None:
    """An end in place of `paused` for a run that is to pause: None, and its state is there."""
    return None


@dataclass
class _Busy:
    assignment: Assignment
    reported: list[Point] = field(default_factory=list)
    seconds: float = 0.0
    is_pausing: bool = False


class ScriptedSlots:
    """Plays the part of Ray and the slots: every turn gives each slot a run or one report.

    `curve` gives the values that a run reports, `end` an end of its own in place of `ok` once the curve is over. A
    report takes `report_s` on the clock. A run whose horizon nobody knows takes 400. A run that has a place for its
    checkpoint can be paused, unless `can_pause` is false; `save` may make that fail.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        slots: int = 1,
        *,
        clock: Clock | None = None,
        curve: Curve = bowl,
        end: End = trains,
        save: End = saves,
        can_pause: bool = True,
        report_s: float = 1.0,
    ) -> None:
        self.coordinator = coordinator
        self.slots: list[_Busy | None] = [None] * slots
        self.given: list[Assignment] = []
        self._clock = clock or Clock()
        self._curve = curve
        self._end = end
        self._save = save
        self._can_pause = can_pause
        self._report_s = report_s

    def play(self, turns: int = 10_000, until: Callable[[], bool] = lambda: False) -> None:
        """Go on until the study is finished; fails when that takes more than `turns`."""
        for _ in range(turns):
            if until() or (self.coordinator.is_finished and not any(self.slots)):
                return
            self.turn()
        raise AssertionError(f"not finished after {turns} turns")

    def turn(self) -> None:
        for number, busy in enumerate(self.slots):
            if busy is None:
                assignment = self.coordinator.next()
                if assignment is not None:
                    self.given.append(assignment)
                    self.slots[number] = _Busy(assignment)
            else:
                self._clock.now += self._report_s / len(self.slots)
                busy.seconds += self._report_s
                report = self._next_report(busy)
                decision = self.coordinator.on_report(busy.assignment.key, report)
                busy.is_pausing = decision == Decision.PAUSE
                if report.end is not None or decision == Decision.STOP:
                    self.slots[number] = None

    def _next_report(self, busy: _Busy) -> SlotReport:
        can_pause = self._can_pause and "checkpoint_dir" in busy.assignment.probe
        if busy.is_pausing:
            assert can_pause
            return self._paused(busy)
        return dataclasses.replace(self._trained(busy), can_pause=can_pause)

    def _paused(self, busy: _Busy) -> SlotReport:
        end = self._save(busy.assignment)
        if end is not None:
            return slot_report(busy, (), end)
        folder = Path(busy.assignment.probe["checkpoint_dir"])
        folder.mkdir(parents=True)
        (folder / "state").write_bytes(b"x" * 100_000)
        last = busy.reported[-1]
        assert last.value.number is not None
        mark = Mark(last.index, last.position, last.step, last.value.number)
        return dataclasses.replace(slot_report(busy, (), ProbeEnd(Outcome.PAUSED, None, last.value)), mark=mark)

    def _trained(self, busy: _Busy) -> SlotReport:
        fidelity = busy.assignment.probe["fidelity"]
        values = self._curve(busy.assignment)
        if busy.assignment.mark is not None and not busy.reported:
            assert Path(busy.assignment.probe["resume_dir"], "state").exists()
            before = len(values) * busy.assignment.mark.index // fidelity["reports"]
            busy.reported = [busy.assignment.mark.point] * before
        done = len(busy.reported)
        is_known = fidelity["max"] is not None
        if done == len(values):
            last = busy.reported[-1].value if busy.reported else Value.of(None)
            over = self._end(busy.assignment) or ProbeEnd(Outcome.OK, None, last)
            shown = () if is_known or over.outcome != Outcome.OK else tuple(busy.reported)
            return slot_report(busy, shown, over)
        index = round(fidelity["reports"] * (done + 1) / len(values))
        point = Point(index, (fidelity["max"] or 400.0) * (done + 1) / len(values), index, Value.of(values[done]))
        busy.reported.append(point)
        if not is_known and point.value.is_finite:
            return slot_report(busy, (), None)
        is_finite = point.value.is_finite
        end = None if is_finite else ProbeEnd(Outcome.DIVERGED, f"is {point.value.kind}", point.value)
        return slot_report(busy, (point,), end)


def slot_report(busy: _Busy, points: tuple[Point, ...], end: ProbeEnd | None) -> SlotReport:
    position = busy.reported[-1].position if busy.reported else 0.0
    return SlotReport(points, position, ProbeRecord(busy.seconds, busy.seconds, None, 1, "test CPU"), "log", end=end)


def memory() -> optuna.storages.BaseStorage:
    return optuna.storages.InMemoryStorage()


def coordinate(
    a_job: ResolvedJob,
    storage: optuna.storages.BaseStorage | None = None,
    *,
    observer: RecordingObserver | None = None,
    slots: int = 1,
    clock: Clock | None = None,
    confirmations: Sequence[Confirmation] = (),
    fit: Mapping[str, Any] | None = None,
    frontiers: Sequence[Mapping[str, Any]] = (),
    checkpoints: Path | None = None,
    learnt: Learnt | None = None,
) -> tuple[Coordinator, RecordingObserver]:
    """A coordinator that has begun."""
    observer = observer or RecordingObserver()
    search = Search(a_job, "job", storage if storage is not None else memory())
    coordinator = Coordinator(
        a_job,
        "job",
        search,
        observer,
        device=CPU,
        slots=slots,
        confirmations=confirmations,
        fit=fit,
        frontiers=frontiers,
        checkpoints=Checkpoints(checkpoints),
        learnt=learnt,
        clock=clock or Clock(),
    )
    coordinator.begin()
    return coordinator, observer


def stored(storage: optuna.storages.BaseStorage) -> list[optuna.trial.FrozenTrial]:
    """The trials in the study, as anyone reads them."""
    return optuna.load_study(study_name="job", storage=storage).get_trials(deepcopy=False)


SCRIPTED = """
import dataclasses, sys, types
import workloads.catalog as catalog

class Scripted:
    def run(self, config, probe):
        exec(config.parameters["code"], {"config": config, "probe": probe})

module = types.ModuleType("scripted_workload")
module.Scripted = Scripted
sys.modules["scripted_workload"] = module
manifest = dataclasses.replace(
    catalog.MANIFESTS["quadratic"], name="scripted", entry="scripted_workload:Scripted"
)
catalog.MANIFESTS = {**catalog.MANIFESTS, "scripted": manifest}
"""


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A private folder whose path leaves room for a socket; pytest's own may be too long."""
    folder = Path(tempfile.mkdtemp(prefix="x5t"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def probe_host(workload: str = "quadratic", *, at_start: str = "", **environment: str) -> Iterator[ProbeHost]:
    """A host that is closed again. `scripted` runs the text in the parameter `code`; `at_start` runs in the warm parent
    before it imports anything.
    """
    with short_folder() as folder:
        if workload == "scripted" or at_start:
            (folder / "sitecustomize.py").write_text(SCRIPTED + at_start)
            environment["PYTHONPATH"] = str(folder)
        host = ProbeHost({"workload": workload}, folder / "h", environment, 1.0)
        try:
            yield host
        finally:
            host.close()


def probe_config(**changes: Any) -> dict[str, Any]:
    """The content of an X5TUNE_CONFIG; what is no field of it is a parameter."""
    config: dict[str, Any] = {
        "parameters": {"lr": 0.005, "batch_size": 64},
        "derived": {},
        "seed": 3,
        "fidelity": {"axis": "samples", "max": 640, "reports": 5},
        "device": "cpu",
        "precision": "fp32",
        "trial": 0,
        "job_id": "job",
        "split": "validation",
    }
    for name, value in changes.items():
        if name in config or name in PROBE_KEYS:
            config[name] = value
        else:
            config["parameters"][name] = value
    return config


def play_with(coordinator: Coordinator, answer: Callable[[Assignment], SlotReport], runs: int) -> list[Assignment]:
    """The runs that the coordinator gives out, one after the other, each with its answer; until it ends or has none."""
    given: list[Assignment] = []
    while not coordinator.is_finished and len(given) < runs:
        assignment = coordinator.next()
        if assignment is None:
            break
        given.append(assignment)
        coordinator.on_report(assignment.key, answer(assignment))
    return given


def slot_setup(folder: Path | str = "", **changes: Any) -> SlotSetup:
    setup = SlotSetup("quadratic", None, None, "val_loss", str(folder), {}, 1.0, 1.0, 0.0, "test CPU", None, 30.0)
    return dataclasses.replace(setup, **changes)


def run_probe(host: ProbeHost, config: Mapping[str, Any], timeout_s: float = 20.0) -> tuple[list[Any], Exited]:
    """The raw reports of a probe that may always go on, and its end."""
    host.start(config, {})
    reports = []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        event = host.wait(1.0)
        if isinstance(event, Report):
            reports.append(event.message)
            host.answer("continue")
        elif isinstance(event, Exited):
            return reports, event
    raise AssertionError(f"the probe has not ended within {timeout_s} s")


def first_report(host: ProbeHost, timeout_s: float = 20.0) -> Report:
    event = host.wait(timeout_s)
    assert isinstance(event, Report), event
    return event


def processes_in(folder: Path) -> list[psutil.Process]:
    """Living processes that work in `folder`, removed or not: what a slot starts, and what that starts, does."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def eventually(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Whether `condition` comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
