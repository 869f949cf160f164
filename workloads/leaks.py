"""Memory that grows from step to step: noticed by the process's size, traced to the line that makes what stays."""

from __future__ import annotations

import contextlib
import gc
import sys
import tracemalloc
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from workloads.contract import Probe
from workloads.held_memory import held_bytes

FIRST_LOOK = 16  # steps; then at each doubling, compared with three quarters and half of them
GROWTH_BYTES = 512 << 10  # since half as many steps, before it is worth a look
WINDOW_STEPS = 4
MIN_BYTES_PER_STEP = 1024
OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent), "<")


class LeakWatch:
    """A probe that looks after the memory of its run and says once, by `say(text)`, which line keeps more and more.

    Nothing is traced until what the process holds has grown between a number of steps and twice as many; then for
    `WINDOW_STEPS`. What is kept for a reason (a cache that fills up) is told as well: it needs memory all the same.
    """

    def __init__(self, probe: Probe, say: Callable[[str], None]) -> None:
        self.Stop = getattr(probe, "Stop", None)
        self._probe, self._say = probe, say
        if hasattr(probe, "send"):
            self.send = probe.send
        self._sizes: dict[int, int] = {}
        self._tracer: LeakTracer | None = None
        self._is_told = False

    @property
    def steps(self) -> int:
        return self._probe.steps

    def due(self, step: int) -> bool:
        self._look(step)
        return self._probe.due(step)

    def report(self, *, step: int, **metrics: float) -> None:
        self._probe.report(step=step, **metrics)

    def _look(self, step: int) -> None:
        if self._tracer is not None:
            self._follow(self._tracer)
        elif not self._is_told and step >= FIRST_LOOK // 2 and is_looked_at(step):
            self._sizes[step] = held_bytes() + device_bytes()
            if step >= FIRST_LOOK and self._has_grown_since_half(step):
                self._tracer = LeakTracer()
                self._tracer.begin()

    def _has_grown_since_half(self, step: int) -> bool:
        """In both parts of that time: what a first evaluation takes and keeps comes once."""
        if step & (step - 1):
            return False
        half, later, now = (self._sizes.get(at, 0) for at in (step // 2, step * 3 // 4, step))
        return now - half >= GROWTH_BYTES and min(later - half, now - later) >= GROWTH_BYTES // 4

    def _follow(self, tracer: LeakTracer) -> None:
        tracer.next_step()
        if tracer.step < WINDOW_STEPS:
            return
        found = tracer.end()
        self._tracer = None
        if found is not None:
            self._is_told = True
            line, size = found
            self._say(f"memory grows by {size / 1024:.0f} KiB a step: {line} makes what stays")

    def close(self) -> None:
        """The run has ended, perhaps within a window."""
        if self._tracer is not None:
            self._tracer.end()
            self._tracer = None


def is_looked_at(step: int) -> bool:
    """Powers of two, and what is half as much again: 8, 12, 16, 24, 32."""
    return step % (1 << (step.bit_length() - 2)) == 0


class LeakTracer(TorchDispatchMode):
    """Remembers for some steps where each tensor's storage, and each Python object, was made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self.step = 0
        self._made: dict[weakref.ref[torch.UntypedStorage], tuple[int, int, str]] = {}
        self._before: tracemalloc.Snapshot | None = None

    def begin(self) -> None:
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.take_snapshot()
        self.__enter__()  # type: ignore[no-untyped-call]  # torch

    def next_step(self) -> None:
        self.step += 1

    def end(self) -> tuple[str, int] | None:
        """The line that kept most, and its bytes a step; None where nothing is kept from step to step."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch
        gc.collect()
        after = tracemalloc.take_snapshot() if tracemalloc.is_tracing() else None
        tracemalloc.stop()
        kept: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for reference, (step, size, line) in self._made.items():
            if reference() is not None and step < self.step - 1:  # the last step's gradients are still there
                kept[line][step] += size
        per_line = {
            line: sum(by_step.values()) // len(by_step)
            for line, by_step in kept.items()
            if len(by_step) >= max(2, self.step - 1)
        }
        if after is not None and self._before is not None:
            per_line = {**self._python(self._before, after), **per_line}
        line, size = max(per_line.items(), key=lambda item: item[1], default=("", 0))
        return (line, size) if size >= MIN_BYTES_PER_STEP else None

    def _python(self, before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> dict[str, int]:
        """What Python and NumPy have kept, by line: made in each step, as far as the count of objects tells."""
        grown = after.compare_to(before, "lineno")
        found = {}
        for statistic in grown:
            frame = statistic.traceback[0]
            if statistic.count_diff >= self.step and not frame.filename.startswith((*OURS, sys.prefix)):
                found[f"{frame.filename}:{frame.lineno}"] = statistic.size_diff // max(1, self.step)
        return found

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                with contextlib.suppress(NotImplementedError, RuntimeError):  # no storage of its own
                    storage = leaf.untyped_storage()
                    reference = weakref.ref(storage, self._forget)
                    if reference not in self._made:
                        self._made[reference] = (self.step, storage.nbytes(), source_line())
        return result

    def _forget(self, reference: weakref.ref[torch.UntypedStorage]) -> None:
        self._made.pop(reference, None)


def device_bytes() -> int:
    """What tensors hold of a GPU; 0 where none is used."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def source_line() -> str:
    """The nearest line that is neither ours nor torch's, nor of another package: `train.py:31`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(OURS) and "site-packages" not in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "the training loop"
