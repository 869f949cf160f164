"""Phase `fit`: the largest micro-batch that is proven to train and evaluate within the memory limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.assignment import Assignment, ProbeEnd, SlotReport
from tuner.fit_plan import LINE_AT, MAX_PROOFS, FitPlan, Predicted, Proof, as_json
from tuner.fit_subject import Subject
from tuner.jobspec import ResolvedJob
from tuner.left_out import Cut, left_out, without
from tuner.phases import Context, Decision, last_value
from tuner.records import Finding, Frontier, Outcome, Phase
from tuner.seeds import trial_seed

MAX_PREDICTIONS = 4
FORETOLD_UP_TO = 2  # times the largest size that is predicted: so far its line is good enough


class FitPhase:
    """One prediction or proof after the other; `earlier` is what a former attempt at the job has told its observer,
    `frontiers` what earlier jobs have proven. In `checkpoint_dir` a proof saves its state and reads it back, as paused
    trials do; None where none is paused.

    A workload that cannot be predicted is proven without; one that fails for another reason than memory is left to the
    search, which has a word for that. `is_over` when there is nothing more to measure.
    """

    def __init__(
        self,
        context: Context,
        subject: Subject,
        earlier: Mapping[str, Any] | None,
        frontiers: Sequence[Mapping[str, Any]] = (),
        checkpoint_dir: str | None = None,
    ) -> None:
        self._context = context
        self._checkpoint_dir = checkpoint_dir
        self._subject = subject
        self._frontiers = frontiers
        self._plan: FitPlan = subject.plan()
        self._running: dict[str, Assignment] = {}
        self._runs = 0
        self._device_seconds = 0.0
        self._is_predictable = subject.is_ours
        self._prediction_failure: str | None = None
        self._skipped: str | None = None
        self._is_settled = False
        self._lowered: int | None = None
        self._left_out: Sequence[Mapping[str, Any]] | None = None
        self._asked: int = context.job.baseline["batch_size"]
        self._is_checkpointing = context.job.limits.checkpointing == "always"
        self._without: Mapping[str, Any] | None = None
        if earlier is not None and earlier.get("without_checkpointing"):
            self._turn_to_checkpointing(earlier["without_checkpointing"])
        self._plan.known.extend(self._known())
        if earlier is not None:
            self._take_up(earlier)
        self._escalate()

    def _known(self) -> Iterator[Proof]:
        """What earlier jobs have proven of the same work in the same place, under whatever limit.

        That nothing fits is taken from them only where there is another way: the job ends by what it has seen itself.
        """
        ours = {**self._key(), "checkpointing": self._is_checkpointing}
        for frontier in self._frontiers:
            if (frontier["micro_batch"] or self._may_turn) and all(
                frontier[name] == value for name, value in ours.items()
            ):
                proofs = [Proof(**proof) for proof in frontier["proofs"]]
                judged = (self._plan.judged(p, frontier["limit_bytes"], frontier["micro_batch"]) for p in proofs)
                yield from (proof for proof in judged if proof is not None)

    def _key(self) -> dict[str, Any]:
        context = self._context
        return {
            "fingerprint": self._subject.fingerprint,
            "device": context.device.name,
            "precision": context.device.precision(context.job.precision),
        }

    def _take_up(self, earlier: Mapping[str, Any]) -> None:
        self._plan.predictions.extend(Predicted(**one) for one in earlier["predictions"])
        self._plan.proofs.extend(Proof(**one) for one in earlier["proofs"])
        self._is_predictable = self._subject.is_ours and earlier["prediction_failure"] is None
        self._prediction_failure = earlier["prediction_failure"]
        self._skipped = earlier["reason"] if earlier["state"] == "skipped" else None
        self._lowered = earlier["lowered_to"]
        self._asked = earlier.get("baseline_asked", self._asked)
        self._is_settled = earlier["state"] != "measuring"
        self._left_out = earlier.get("left_out") if self._is_settled else None
        self._device_seconds = earlier["device_seconds"]
        self._context.ledger.add_seconds(self._device_seconds)

    def _escalate(self) -> None:
        """Where nothing fits: once more with activations that are computed again, if the job allows it."""
        if self._may_turn and not self._is_settled and self.is_infeasible:
            self._turn_to_checkpointing(self._plan.to_json())
            self._plan.known.extend(self._known())

    @property
    def _may_turn(self) -> bool:
        is_allowed = self._context.job.limits.checkpointing == "auto"
        return is_allowed and self._subject.is_ours and not self._is_checkpointing

    def _turn_to_checkpointing(self, without: Mapping[str, Any]) -> None:
        self._plan = self._subject.plan()
        self._is_checkpointing, self._without, self._left_out = True, without, None

    def begin(self) -> None:
        """Announce the phase."""
        self._context.observer.phase_started(Phase.FIT, MAX_PROOFS)
        if self.is_over:  # by what earlier jobs have proven
            self._tell(None)

    @property
    def is_idle(self) -> bool:
        return not self._running

    @property
    def is_settled(self) -> bool:
        """Whether an earlier attempt has been through the phase."""
        return self._is_settled

    @property
    def is_over(self) -> bool:
        return self._is_settled or self._skipped is not None or self._plan.next_size() is None

    @property
    def is_infeasible(self) -> bool:
        """Whether not even the smallest micro-batch that was tried fits, or no batch can be made of those that do."""
        return self._skipped is None and self.is_over and (self._plan.proven is None or self.job is None)

    @property
    def left_out(self) -> Sequence[Mapping[str, Any]]:
        """The batch sizes that cannot be made, each with its reason; none while the phase is not over."""
        proof = self._plan.proven
        if self._left_out is None and self.is_over and proof is not None:
            self._left_out = left_out(self._context.job, Cut(proof.micro_batch, self._subject.can_cut))
        return self._left_out or []

    @property
    def job(self) -> ResolvedJob | None:
        """What is left to search; None where nothing is."""
        return without(self._context.job, self.left_out)

    @property
    def remarks(self) -> Iterator[Finding]:
        """What had to give way to memory, in words."""
        if self._without is not None:
            yield self._checkpointing_remark()
        if self.left_out:
            yield self._left_out_remark()

    def _checkpointing_remark(self) -> Finding:
        message = (
            "Nothing fits into memory as it is, so every run computes activations again instead of keeping them "
            "(activation checkpointing): the same numbers, and about a third more time a step."
        )
        action = "Train with it too (the recipe's derived.checkpointing), or raise what limits memory."
        return Finding("activation_checkpointing", message, {"without": self._without}, action)

    def _left_out_remark(self) -> Finding:
        words = "; ".join(f"{_span(one['batch_size'])} ({one['reason']})" for one in self.left_out)
        message = f"Left out of search.batch_size, because it cannot be made within the memory limit: {words}."
        runs_with = self._context.job.baseline["batch_size"]
        if runs_with != self._asked:
            message += f" So the baseline ran with a batch size of {runs_with} instead of {self._asked}."
        evidence = {"left_out": list(self.left_out), "baseline_batch_size": runs_with}
        return Finding("batch_sizes_left_out", message, evidence, "Nothing, or raise what limits it.")

    @property
    def frontier(self) -> Frontier | None:
        """The largest micro-batch that fits; None where nothing is proven."""
        proof = self._plan.proven
        if proof is None:
            return None
        is_proven = self._lowered is None or proof.micro_batch <= self._lowered
        return Frontier(
            micro_batch=proof.micro_batch if self._lowered is None else self._lowered,
            peak_bytes=proof.peak_bytes if is_proven else None,
            limit_bytes=self._plan.limit_bytes,
            cap_bytes=self._plan.cap_bytes,
            samples_per_s=proof.samples_per_s,
            can_cut=self._subject.can_cut,
            checkpointing=self._is_checkpointing,
        )

    def give_way(self, micro_batch: int) -> bool:
        """A run with this micro-batch was out of memory all the same: from now on the next smaller one.

        False where there is none, or the batch cannot be cut. More than one run may find out the same.
        """
        frontier = self.frontier
        if frontier is None or not frontier.can_cut:
            return False
        if micro_batch <= frontier.micro_batch:
            smaller = [size for size in self._subject.sizes if size < micro_batch]
            if not smaller:
                return False
            self._lowered = smaller[-1]
            self._context.frontier = self.frontier
            self._tell(None)
        return True

    def next(self) -> Assignment | None:
        if self._running or self.is_over or self._context.is_cancelled:
            return None
        spent = self._context.ledger.is_spent()
        if spent is not None:
            self._skip(f"the budget is spent (budget.{spent})")
            return None
        assignment = self._assign()
        self._runs += 1
        self._running[assignment.key] = assignment
        return assignment

    def _assign(self) -> Assignment:
        if self._is_predictable and not self._plan.predictions:
            return self._assignment(max(LINE_AT), {"predict": list(LINE_AT)})
        size = self._plan.next_size()
        assert size is not None
        known = [one.micro_batch for one in self._plan.predictions]
        if self._is_predictable and size > FORETOLD_UP_TO * max(known) and len(known) < MAX_PREDICTIONS:
            return self._assignment(size, {"predict": [size]})
        return self._assignment(size, {"prove": True})

    def _assignment(self, size: int, what: Mapping[str, Any]) -> Assignment:
        context, accumulation = self._context, self._subject.accumulation(size)
        processes = 1 if self._subject.is_ours else context.job.resources.processes
        parameters = {**self._subject.parameters, "batch_size": size * accumulation * processes}
        probe = context.probe(-1, parameters, trial_seed(context.job.seed), "validation")
        probe["derived"] |= {"micro_batch": size, "accumulation": accumulation}
        if self._is_checkpointing:
            probe["derived"]["checkpointing"] = True
        if self._subject.is_ours:
            probe["fit"] = {**what, "memory_fraction": context.job.limits.memory_fraction}
            if "prove" in what and self._checkpoint_dir is not None:
                probe["checkpoint_dir"] = self._checkpoint_dir
        if "predict" in what:
            return Assignment(f"f{self._runs}", probe, judged=False, fit="predict")
        cap_bytes = self._plan.cap_bytes if context.device.type == "cpu" else None
        return Assignment(f"f{self._runs}", probe, judged=False, fit="prove", cap_bytes=cap_bytes)

    def on_report(self, key: str, report: SlotReport) -> Decision:
        if report.end is not None:
            self._end(self._running.pop(key), report, report.end)
            return Decision.CONTINUE
        if not self._context.is_cancelled:
            return Decision.CONTINUE
        end = ProbeEnd(Outcome.CANCELLED, "the job was cancelled", last_value(report))
        self._end(self._running.pop(key), report, end)
        return Decision.STOP

    def _end(self, assignment: Assignment, report: SlotReport, end: ProbeEnd) -> None:
        self._device_seconds += report.probe.device_seconds
        self._context.ledger.add_seconds(report.probe.device_seconds)
        measured = report.fit or {}
        reason = end.reason or str(end.outcome)
        if end.is_fatal:
            self._skipped = reason
        elif assignment.fit == "prove":
            self._prove(assignment, report, end, measured)
        elif "predictions" in measured:
            self._plan.predictions.extend(Predicted(**one) for one in measured["predictions"])
        elif end.outcome != Outcome.CANCELLED:
            self._is_predictable, self._prediction_failure = False, reason
        self._escalate()
        self._tell(report)

    def _prove(self, assignment: Assignment, report: SlotReport, end: ProbeEnd, measured: Mapping[str, Any]) -> None:
        """Take in a proof: what was over its cap or ended for want of memory does not fit.

        What ended otherwise proves nothing.
        """
        stage = measured.get("stage")
        if end.outcome == Outcome.CANCELLED:
            return
        was_ended = bool(measured.get("is_over"))
        is_through = "samples_per_s" in measured or bool(measured.get("reports"))
        if not is_through and not was_ended and end.outcome != Outcome.OUT_OF_MEMORY:
            self._skipped = f"the proof ended {end.outcome} in {stage}: {end.reason}"
            return
        has_died = end.outcome == Outcome.OUT_OF_MEMORY
        peak = None if has_died else int(measured.get("peak_bytes") or measured["host_peak_bytes"])
        fits = peak is not None and peak <= self._plan.cap_bytes and not was_ended and not measured.get("alloc_retries")
        derived = assignment.probe["derived"]
        self._plan.proofs.append(
            Proof(
                micro_batch=derived["micro_batch"],
                accumulation=derived["accumulation"],
                fits=fits,
                peak_bytes=peak,
                stage=stage if has_died or was_ended else None,
                reason=end.reason if has_died else None if fits else "the peak is above the cap",
                seconds=report.probe.seconds,
                samples_per_s=measured.get("samples_per_s"),
                was_ended=was_ended,
            )
        )

    def _skip(self, reason: str) -> None:
        self._skipped = reason
        self._tell(None)

    def _tell(self, report: SlotReport | None) -> None:
        self._context.search.remember_seconds(self._context.ledger.seconds)
        self._context.observer.fit_measured(self.to_json(), report.probe if report else None)

    def on_lost(self, key: str, reason: str) -> None:  # noqa: ARG002 - nothing is known, so `next` asks for it again
        self._running.pop(key)
        self._device_seconds += self._context.charge_lost(key)

    def to_json(self) -> dict[str, Any]:
        """How the phase stands: for people, and for an attempt that takes it up."""
        state = "skipped" if self._skipped else "infeasible" if self.is_infeasible else "done"
        subject, frontier = self._subject, self.frontier
        return {
            "state": state if self.is_over else "measuring",
            "reason": self._skipped or (self.finding().message if self.is_infeasible else None),
            **self._key(),
            "checkpointing": self._is_checkpointing,
            "without_checkpointing": self._without,
            "parameters": {**subject.parameters, "batch_size": None},
            "prediction_failure": self._prediction_failure,
            "device_seconds": self._device_seconds,
            **self._plan.to_json(),
            "lowered_to": self._lowered,
            "left_out": list(self.left_out),
            "baseline_asked": self._asked,
            "micro_batch": frontier.micro_batch if frontier else None,
            "peak_bytes": frontier.peak_bytes if frontier else None,
        }

    def finding(self) -> Finding:
        """Why nothing fits, or nothing can be made of what does."""
        if self._plan.proven is not None:
            reasons = "; ".join(str(one["reason"]) for one in self.left_out)
            message = f"None of the batch sizes can be made within the memory limit: {reasons}."
            return Finding("does_not_fit", message, {"left_out": list(self.left_out)}, "Give smaller batch sizes.")
        mib = 1 << 20
        smallest = min((p for p in self._plan.evidence), key=lambda p: p.micro_batch)
        stage = "before it began" if smallest.stage is None else f"in {smallest.stage}"
        where = stage if smallest.peak_bytes is None else "by its measured peak"
        message = (
            f"Not even a micro-batch of {smallest.micro_batch} fits into "
            f"{self._plan.cap_bytes / mib:.0f} MiB of memory: it was over {where}"
            f"{', with activation checkpointing too' if self._is_checkpointing else ''}."
        )
        evidence = {"proofs": [as_json(proof) for proof in self._plan.evidence], "limit_bytes": self._plan.limit_bytes}
        action = "Raise limits.host_memory_mib, or make the model or its evaluation batches smaller."
        return Finding("does_not_fit", message, evidence, action)


def _span(batch_size: Any) -> str:
    return f"{batch_size['low']} to {batch_size['high']}" if isinstance(batch_size, Mapping) else str(batch_size)
