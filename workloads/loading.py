"""Batches of a dataset, from this process or from workers that are ahead of it: the same ones, whoever makes them.

What is random in a dataset follows from the seed and the number of the batch, not from who makes it or what was made
before, so workers may be added in the middle of a run. They send their batches through pipes, as a machine may have
little shared memory. Workers that fail or do not answer are given up: what they were to make is made here, and a
dataset's own error is raised here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import pickle
import random
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

WINDOW_S = 1.0
"""Of training, between two looks at how much of it was waiting."""
WAIT_SHARE = 0.2
"""Of the training time spent waiting for data from which on there are more workers."""
LEAST_WAIT_S = 0.002
"""For each batch: less is no longer than what it takes to send one."""
PATIENCE_S = 30.0
BUSY = 10.0
"""How many times the longest wait so far a worker may take, where that is more."""

PIPE_BYTES, LENGTH_BYTES = 1 << 20, 8

Make = Callable[[int], Any]


class Worker:
    """A forked process that makes every `stride`th batch from `first` on, ahead by what its pipe holds, or by one."""

    def __init__(self, make: Make, first: int, stride: int) -> None:
        self._pipe, write = os.pipe()
        with contextlib.suppress(OSError):
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: it uses none of them
            self._pid = os.fork()
        if self._pid == 0:
            try:
                os.close(self._pipe)
                _serve(write, make, first, stride, parent)
            finally:
                os._exit(0)
        os.close(write)
        self._poll = select.poll()  # not select(), which knows the first 1024 files only
        self._poll.register(self._pipe, select.POLLIN)
        self._end = _end_of(self._pid)
        if self._end is not None:
            self._poll.register(self._end, select.POLLIN)

    def receive(self, timeout_s: float) -> Any:
        """Its next batch. Raises EOFError where it is gone, or has failed, and TimeoutError."""
        deadline = time.monotonic() + timeout_s
        length = int.from_bytes(self._read(LENGTH_BYTES, deadline))
        return pickle.loads(self._read(length, deadline))  # noqa: S301 - our own process has written it

    def _read(self, count: int, deadline: float) -> bytearray:
        found = bytearray()
        while len(found) < count:
            ready = dict(self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                raise TimeoutError("a loader worker does not answer")
            if self._pipe not in ready:  # what its dataset has forked may hold the pipe open
                raise EOFError("a loader worker has ended")
            part = os.read(self._pipe, min(count - len(found), PIPE_BYTES))
            if not part:
                raise EOFError("a loader worker has ended")
            found += part
        return found

    def close(self) -> None:
        os.close(self._pipe)
        if self._end is not None:
            os.close(self._end)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _end_of(pid: int) -> int | None:
    """A file that can be read from when the process has ended; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


class Loader:
    """Gives batches by number, counting up. `make` makes the batch of a number, on the CPU.

    `most` is how many workers there may be; without any, `make` is left to itself: nothing about it is random.
    """

    def __init__(self, make: Make, seed: int, most: int) -> None:
        self._make = make if most == 0 else lambda number: _seeded(make, seed, number)
        self._most = most
        self._workers: list[Worker] = []
        self._first = self._next = 0
        self._seen = (0.0, 0.0, 0)
        self._longest_s = 0.0
        self._batches = 0
        self._news: list[tuple[str, str]] = []

    def get(self, number: int) -> Any:
        """The batch of this number."""
        began = time.monotonic()
        self._batches += 1
        self._next = number + 1
        if self._workers:
            worker = self._workers[(number - self._first) % len(self._workers)]
            try:
                return worker.receive(max(PATIENCE_S, BUSY * self._longest_s))
            except Exception as error:  # whatever a batch does that cannot be sent
                reason = str(error) or type(error).__name__
                self._news.append(("loader_workers_given_up", f"batches are made without workers again: {reason}"))
                self._most = 0
                self.close()
        batch = self._make(number)
        self._longest_s = max(self._longest_s, time.monotonic() - began)
        return batch

    def adapt(self, waited_s: float, trained_s: float) -> list[tuple[str, str]]:
        """Add workers where waiting takes too much of the training time, both so far; what is new, by name."""
        waited, trained, batches = waited_s - self._seen[0], trained_s - self._seen[1], self._batches - self._seen[2]
        if trained >= WINDOW_S:
            self._seen = (waited_s, trained_s, self._batches)
            wanted = more(len(self._workers), self._most, waited / trained, waited / max(1, batches))
            if wanted != len(self._workers):
                self.work_with(wanted)
                said = f"{waited / trained:.0%} of the time went into waiting for data: loader workers from here on"
                self._news.append((f"loader_workers_{wanted}", f"{said}: {wanted} (at most {self._most})"))
        news, self._news = self._news, []
        return news

    def work_with(self, workers: int) -> None:
        """So many from the next batch on."""
        self.close()
        self._first = self._next
        for place in range(workers):
            self._workers.append(Worker(self._make, self._first + place, workers))

    def close(self) -> None:
        for worker in self._workers:
            worker.close()
        self._workers = []


def more(workers: int, most: int, wait_share: float, wait_s: float) -> int:
    """How many workers there should be: twice as many where waiting takes more than it should."""
    if wait_share < WAIT_SHARE or wait_s < LEAST_WAIT_S:
        return workers
    return max(workers, min(most, max(1, 2 * workers)))


def _serve(pipe: int, make: Make, first: int, stride: int, parent: int) -> None:
    """Make batches until killed; ends with the process that it works for."""
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)  # more would wait for threads that no fork takes along
    number = first
    while os.getppid() == parent:
        batch = pickle.dumps(_compact(make(number)), protocol=pickle.HIGHEST_PROTOCOL)
        unsent = memoryview(len(batch).to_bytes(LENGTH_BYTES) + batch)
        while unsent:
            unsent = unsent[os.write(pipe, unsent) :]
        number += stride


def _compact(value: Any) -> Any:
    """Tensors without the rest of what they are views of."""
    if isinstance(value, torch.Tensor):
        is_view = value.layout is torch.strided and not value.is_nested
        return value.clone() if is_view and value.untyped_storage().nbytes() > value.nbytes else value
    if isinstance(value, dict):
        return {key: _compact(item) for key, item in value.items()}
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return type(value)(_compact(item) for item in value)
    return value


def _seeded(make: Make, seed: int, number: int) -> Any:
    """`make(number)` with random numbers of its own; the generators of the CPU are afterwards as they were before."""
    with _kept_generators():
        own = ((seed * 1_000_003 + number) ^ 0x5EED_0F_DA7A) % 2**63  # else it would be an epoch's (`batches.Order`)
        torch.default_generator.manual_seed(own)
        random.seed(own)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(own % 2**32)
        return make(number)


@contextlib.contextmanager
def _kept_generators() -> Iterator[None]:
    numpy = sys.modules.get("numpy")
    kept = torch.get_rng_state(), random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        random.setstate(kept[1])
        if numpy is not None:
            numpy.random.set_state(kept[2])
