"""The judge of want of memory, on what libraries really say."""

from __future__ import annotations

import subprocess
import sys

import pytest

from workloads.out_of_memory import ended_out_of_memory, is_out_of_memory, says_out_of_memory

TORCH_CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.17 GiB is free. Including non-PyTorch memory, this process has 77.97 GiB memory in use."
)
CUBLAS = "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
NCCL = """\
[rank7]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, \
unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5
[rank7]: ncclUnhandledCudaError: Call to CUDA function failed.
[rank7]: Last error:
[rank7]: Cuda failure 2 'out of memory'
"""
WANT = [
    TORCH_CUDA,
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total capacity)",
    "torch.AcceleratorError: CUDA error: out of memory",
    "RuntimeError: CUDA driver error: out of memory",
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB",
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.94 GB)",
    CUBLAS,
    "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
    NCCL,
    "ins-7df6:3018451:3018451 [0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
    "to allocate 524288 bytes. Error code 12 (Cannot allocate memory)",
    "RuntimeError: [enforce fail at CPUAllocator.cpp:76] data. DefaultCPUAllocator: not enough memory: you tried to "
    "allocate 4294967296 bytes.",
    "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 TiB for an array with shape (1099511627776,)",
    "OSError: [Errno 12] Cannot allocate memory",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 3435973 bytes.",
    "RuntimeError: DataLoader worker (pid 7420) is killed by signal: Killed. ",
]
OTHER = [
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (64x72 and 71x10)",
    "RuntimeError: The size of tensor a (64) must match the size of tensor b (32) at non-singleton dimension 1",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
    "RuntimeError: CUDA error: device-side assert triggered",
    "RuntimeError: required rank 4 tensor to use channels_last memory format",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "RuntimeError: could not create a primitive",
    "RuntimeError: could not create a primitive descriptor for the convolution forward propagation primitive",
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "torch.distributed.DistBackendError: NCCL error: unhandled cuda error. Cuda failure 1 'invalid argument'",
    "IndexError: index 5 is out of bounds for dimension 0 with size 5",
    "ValueError: address out of memory range",
    "RuntimeError: DataLoader worker (pid 7420) is killed by signal: Segmentation fault. ",
]


@pytest.mark.parametrize("message", WANT)
def test_want_of_memory_is_known_by_its_words(message: str) -> None:
    assert says_out_of_memory(message)
    assert ended_out_of_memory(f'step 1\nTraceback (most recent call last):\n  File "t.py", line 3\n{message}\n')


@pytest.mark.parametrize("message", OTHER)
def test_other_errors_are_not_taken_for_it(message: str) -> None:
    assert not says_out_of_memory(message)
    assert not ended_out_of_memory(f'Traceback (most recent call last):\n  File "t.py", line 3\n{message}\n')


def test_onednn_says_so_only_under_a_limit() -> None:
    words = "RuntimeError: could not create a primitive\n"
    assert ended_out_of_memory(words, is_limited=True)
    assert not ended_out_of_memory("RuntimeError: could not create a primitive descriptor\n", is_limited=True)


def test_what_was_overcome_before_does_not_count() -> None:
    output = f"trying batch 64\n{TORCH_CUDA}\nhalved the batch\nTraceback (most recent call last):\n{OTHER[0]}\n"
    assert not ended_out_of_memory(output)


def test_an_error_that_was_raised_over_it_counts() -> None:
    output = (
        f"Traceback (most recent call last):\n{TORCH_CUDA}\n\nDuring handling of the above exception, another "
        "exception occurred:\n\nTraceback (most recent call last):\nRuntimeError: training has failed\n"
    )
    assert ended_out_of_memory(output)


def test_a_launcher_does_not_hide_what_its_child_has_said() -> None:
    output = (
        f"Traceback (most recent call last):\n{CUBLAS}\nTraceback (most recent call last):\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n"
    )
    assert ended_out_of_memory(output)
    killed = output.replace(CUBLAS, "") + "  exitcode  : -9 (pid: 4711)\n  traceback : Signal 9 (SIGKILL) received\n"
    assert ended_out_of_memory(killed)


def test_a_cause_counts() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("the step has failed") from error
    except ValueError as error:
        assert is_out_of_memory(error)
    assert not is_out_of_memory(ValueError("shapes differ"))


LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))\n"


@pytest.mark.parametrize(
    "code",
    [
        "import torch; torch.zeros(8 << 30)",
        "import numpy; numpy.ones(8 << 30)",
        "bytearray(8 << 30)",
        "import mmap; mmap.mmap(-1, 8 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    ],
)
def test_a_real_process_that_gets_no_memory_is_recognised(code: str) -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED + code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended_out_of_memory(ended.stderr)


def test_a_real_shape_error_is_not() -> None:
    code = "import torch; torch.zeros(2, 3) @ torch.zeros(2, 3)"
    ended = subprocess.run([sys.executable, "-c", LIMITED + code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert not ended_out_of_memory(ended.stderr, is_limited=True)
