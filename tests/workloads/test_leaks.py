"""When a run's memory is traced: where it grows from step to step, and not where the heap has holes."""

from __future__ import annotations

import tracemalloc

from workloads.held_memory import held_bytes
from workloads.leaks import LeakWatch, is_looked_at

MIB = 1 << 20
PIECE = 100_000  # below what the C library maps for itself


class Steps:
    steps = 20

    def due(self, step: int) -> bool:
        return False

    def report(self, **_: float) -> None: ...


def traced(kept_at: range, size: int = MIB) -> bool:
    """Whether a run is traced after 16 steps of which those in `kept_at` keep `size` bytes."""
    watch, kept = LeakWatch(Steps(), print), []
    for step in range(1, 17):
        if step in kept_at:
            kept.append(bytearray(size))
        watch.due(step)
    is_tracing = tracemalloc.is_tracing()
    watch.close()
    return is_tracing


def test_what_each_step_keeps_is_traced() -> None:
    assert traced(range(1, 17))


def test_what_the_first_evaluation_keeps_once_is_not() -> None:
    assert not traced(range(10, 11), 8 * MIB)
    assert not traced(range(14, 15), 8 * MIB)


def test_holes_in_the_heap_are_not_held() -> None:
    before = held_bytes()
    pieces = [bytearray(PIECE) for _ in range(200)]
    full = held_bytes()
    del pieces[: 19 * 10 : 2], pieces[:80]  # what is left at the end keeps the heap from shrinking

    assert full - before > 150 * PIECE
    assert full - held_bytes() > 100 * PIECE


def test_the_looks_are_at_doublings_and_half_way() -> None:
    assert [step for step in range(8, 70) if is_looked_at(step)] == [8, 12, 16, 24, 32, 48, 64]
