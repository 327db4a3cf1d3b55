"""The device of a step of the GPU check: what it is, its times and its memory."""

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import torch

from gpu.finding import lacks, rehearses

if TYPE_CHECKING:  # the first step runs before the package is installed
    from dynapipe_hpc.executor.transport.torch_distributed import Backend

# Dense bfloat16, from the data sheets.
PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "B200": 2250.0}


class Times(NamedTuple):
    """Median times of some work, in ms.

    Attributes:
        device_ms: Until the device has finished.
        host_ms: Until the host has launched it.
    """

    device_ms: float
    host_ms: float


def find_device() -> torch.device:
    """The GPU; ends the step where there is none, unless this is a rehearsal."""
    if not torch.cuda.is_available() and not rehearses():
        lacks("a CUDA device")
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def backend_of(device: torch.device) -> "Backend":
    """Backend that carries tensors between such devices."""
    return "nccl" if device.type == "cuda" else "gloo"


def nccl_version() -> tuple[int, ...]:
    """Version of the NCCL that torch has loaded."""
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return version


def once_ms(device: torch.device, work: Callable[[], object]) -> Times:
    """Times of one call, on a device that has nothing else to do."""
    wait_for(device)
    started_s = time.perf_counter()
    work()
    launched_s = time.perf_counter()
    wait_for(device)
    return Times(1e3 * (time.perf_counter() - started_s), 1e3 * (launched_s - started_s))


def typical_ms(device: torch.device, work: Callable[[], object], n_repeats: int = 7) -> Times:
    """Median times of a call, after two that warm up."""
    for _ in range(2):
        work()
    times = [once_ms(device, work) for _ in range(n_repeats)]
    return Times(*(median(column) for column in zip(*times, strict=True)))


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_flops_per_ms(device: torch.device) -> float:
    """Peak rate of the GPU in bfloat16; NaN if it is not in the list, or no GPU."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    found = (tflops for known, tflops in PEAK_TFLOPS.items() if known in name)
    return 1e9 * next(found, float("nan"))


def allocated_bytes(device: torch.device) -> int:
    """Bytes that tensors take now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """The most that tensors take during a call, beyond what they took before."""
    before = allocated_bytes(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else 0


def library_bytes(device: torch.device) -> int:
    """Bytes of the device taken by all but torch's allocator."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free - torch.cuda.memory_reserved(device)
