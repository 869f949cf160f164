"""The one judge of whether memory ran out: of an exception, and of what a process has printed.

Standard library only.
"""

from __future__ import annotations

import re
import resource

_MARKS = re.compile(
    r"""
      \bMemoryError\b                                       # Python, NumPy
    | \bOutOfMemoryError\b                                  # torch, Ray, JAX
    | \bout\ of\ memory\b(?!\ (?:range|bounds|order))       # CUDA, HIP, MPS, the driver, NCCL
    | \bcudaErrorMemoryAllocation\b
    | \b(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER|CURAND)_STATUS_ALLOC(?:ATION)?_FAILED\b
    | \bCUDNN_STATUS_INTERNAL_ERROR_(?:HOST|DEVICE)_ALLOCATION_FAILED\b
    | \bCUFFT_ALLOC_FAILED\b
    | \bRESOURCE_EXHAUSTED\b                                # XLA
    | \bOOM\ when\ allocating\b                             # TensorFlow
    | \bcan't\ allocate\ memory\b | \bnot\ enough\ memory:\ you\ tried\ to\ allocate\b  # torch on the CPU
    | \bCannot\ allocate\ memory\b                          # the C library's ENOMEM; NCCL's host buffers
    | \bUnable\ to\ allocate\ [\d.]+\ [KMGT]iB\b            # NumPy
    | \bstd::bad_alloc\b
    | \bis\ killed\ by\ signal:\ Killed\b                   # torch of a worker of its DataLoader
    | \bSignal\ 9\ \(SIGKILL\)\ received\b | \bexitcode\s*:\s*-9\b  # torchrun of a rank
    """,
    re.VERBOSE | re.IGNORECASE,
)
_UNDER_A_LIMIT = re.compile(r"\bcould not (?:create|execute) a (?:primitive|memory(?: object)?)(?! descriptor)\b")
"""What oneDNN says when it gets no memory; it says so of processors that it does not know, too."""

_ERROR_LINE = re.compile(r"^(?:\[?(?:default|rank)?\d*\]?:?\s*)?(?:[A-Za-z_][\w.]*\.)?\w*(?:Error|Exception)\b(?=:|$)")
_LAUNCHERS = re.compile(r"\b(?:ChildFailedError|CalledProcessError|ProcessRaisedException)\b|: DataLoader worker")
_CHAINED = ("During handling of the above exception", "was the direct cause of the following exception")
TAIL_LINES = 200


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or what it was raised from or over, says that memory ran out, on the device or on the host."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, MemoryError) or says_out_of_memory(f"{type(found).__name__}: {found}"):
            return True
        if is_host_limited() and _UNDER_A_LIMIT.search(str(found)):
            return True
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return False


def says_out_of_memory(text: str) -> bool:
    """Whether a message says that memory ran out; a shape error that is about memory formats does not."""
    return _MARKS.search(text) is not None


def ended_out_of_memory(output: str, *, is_limited: bool = False) -> bool:
    """Whether a process that failed and printed this did so for want of memory.

    The last error counts, and those that it was raised over; an error that was printed and overcome before does not.
    What a launcher says of its child does not hide the child's own words. `is_limited`: its host memory was capped.
    """
    lines = output.splitlines()[-TAIL_LINES:]
    errors = [at for at, line in enumerate(lines) if _ERROR_LINE.match(line) and not _LAUNCHERS.search(line)]
    if not errors:
        return any(_says(line, is_limited=is_limited) for line in lines)
    chain = [errors[-1]]
    for before in reversed(errors[:-1]):
        if not any(mark in line for line in lines[before : chain[-1]] for mark in _CHAINED):
            break
        chain.append(before)
    ends = {at: next((e for e in errors if e > at), len(lines)) for at in chain}
    return any(_says(line, is_limited=is_limited) for at in chain for line in lines[at : ends[at]])


def _says(line: str, *, is_limited: bool) -> bool:
    return says_out_of_memory(line) or (is_limited and _UNDER_A_LIMIT.search(line) is not None)


def is_host_limited() -> bool:
    """Whether the kernel caps this process's data."""
    return resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
