"""The device on which a rank computes."""

import hashlib
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.executor.clock import Clock, HostClock
from dynapipe_hpc.executor.cuda_clock import CudaClock
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.launch import device_index
from dynapipe_hpc.job.machine import usable_bytes
from dynapipe_hpc.job.world import STARTED
from dynapipe_hpc.training.allocated_memory import (
    ADVISED_SHARE,
    MARGIN_BYTES,
    PLANNED_SHARE,
    reserve,
    reserved_bytes,
)

CPU = torch.device("cpu")
CONNECTIONS_BYTES = 2_000_000_000
"""Memory of a GPU that is left for the buffers of communicators, before their number is known."""
SHARE_OF_HOST = 0.6
"""Share of the memory of a host that plans may fill where ranks compute on its cores."""


@dataclass(frozen=True, slots=True)
class RankDevice:
    """The device of a rank."""

    device: torch.device
    is_shared: bool = False  # whether any two ranks of the job share a GPU


def find_device(job: Job, config: ExperimentConfig) -> RankDevice:
    """Assigns the GPUs of every host to its ranks in turn; all ranks together."""
    device_name = config.training.device
    n_devices = torch.cuda.device_count() if device_name != "cpu" else 0
    counts = job.all_gather_int(n_devices)
    if device_name != "cpu" and not n_devices and torch.xpu.is_available():
        raise InputError(
            f"rank {job.rank} sees Intel GPUs, which are not supported; set training.device to "
            "'cpu' to compute on processors"
        )
    if device_name == "cuda" and not n_devices:
        raise InputError(
            f"training.device is 'cuda', but rank {job.rank} sees no GPU{_visible()}; start the "
            "job on nodes with GPUs (sbatch --gpus-per-node=N), with a build of torch for "
            "CUDA or ROCm, or set it to 'cpu'"
        )
    if not all(counts):
        return RankDevice(CPU)
    on_host = job.on_this_host()
    device = torch.device("cuda", device_index(on_host.rank, n_devices))
    torch.cuda.set_device(device)
    # torch warns when a thread of autograd takes the device with its first product.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA")
    identities = on_host.all_gather_int(_identity(device))
    on_host.free()
    shares = job.all_gather_int(len(identities) - len(set(identities)))
    return RankDevice(device, is_shared=any(shares))


def memory_of_ranks(job: Job) -> tuple[bool, int]:
    """Whether all ranks have GPUs, and the bytes that plans may fill on each; all together."""
    n_devices = torch.cuda.device_count()
    host = job.on_this_host()
    on_gpus = all(job.all_gather_int(n_devices))
    if on_gpus:
        index = device_index(host.rank, n_devices)
        torch.cuda.set_device(index)
        free, total = torch.cuda.mem_get_info(index)
        room = min(ADVISED_SHARE * total, PLANNED_SHARE * (free - CONNECTIONS_BYTES - MARGIN_BYTES))
        room /= -(-host.size // n_devices)
    else:
        room = SHARE_OF_HOST * usable_bytes() / host.size
    host.free()
    return on_gpus, int(min(job.all_gather_int(int(room))))


def dtype_of(config: ExperimentConfig) -> torch.dtype:
    """The configured type of weights and activations."""
    dtype: torch.dtype = getattr(torch, config.training.dtype)
    return dtype


def clock_of(device: torch.device) -> Clock[Any]:
    return HostClock() if device.type == "cpu" else CudaClock()


def reserve_memory(on: RankDevice, config: ExperimentConfig) -> None:
    """Reserves GPU memory for plans that fill what the configuration allows, before training."""
    if on.device.type == "cpu":
        return
    try:
        reserve(on.device, reserved_bytes(config.cluster.device_memory_bytes))
    except MemoryError as error:
        raise InputError(f"cluster.device_memory_bytes: {error}; lower it") from error


def wait_for(device: torch.device) -> None:
    """Waits until a device has finished all launched work, for measurements."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _visible() -> str:
    if STARTED.devices is None:
        return ""
    return f" (it may see '{','.join(STARTED.devices)}')"


def _identity(device: torch.device) -> int:
    name = str(torch.cuda.get_device_properties(device).uuid)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
