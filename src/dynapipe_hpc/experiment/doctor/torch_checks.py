"""GPUs that torch sees, and their memory."""

from collections.abc import Iterator

import torch

from dynapipe_hpc.executor.transport.torch_distributed import communicator_bytes
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.experiment.rank.host_device import (
    circumstances,
    find_host_device,
    slow_dtype,
    slow_packed_rows,
)
from dynapipe_hpc.job.launch import device_index
from dynapipe_hpc.models.tied_weights import paired_stages, tied_weights
from dynapipe_hpc.training.allocated_memory import (
    ADVISED_SHARE,
    MARGIN_BYTES,
    PLANNED_SHARE,
    reserved_bytes,
)

_GB = 1e9


def circumstances_here(config: ExperimentConfig, n_ranks: int) -> dict[str, str]:
    return circumstances(config, find_host_device(config), n_ranks)


def uses_gpus(config: ExperimentConfig) -> bool:
    wants = config.training.device
    return wants == "cuda" or (wants == "auto" and torch.cuda.device_count() > 0)


def check_devices(case: Case) -> Iterator[Finding]:
    """The GPU of this rank, and whether it has the memory that `cluster` asks for."""
    n_devices = torch.cuda.device_count()
    wants = case.config.training.device if case.config else "auto"
    if not n_devices:
        yield _no_gpu(wants)
        return
    # No other: asking for its memory would put a context there, which other ranks' exclusive use
    # forbids.
    index = device_index(case.on_host.rank, n_devices)
    torch.cuda.set_device(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    name = torch.cuda.get_device_name(index)
    sizes = f"{total_bytes / _GB:.1f} GB, {free_bytes / _GB:.1f} GB free"
    yield Finding(f"GPU {index}", f"{name}, {sizes}")
    if case.config and wants != "cpu":
        yield from _room(case.config, free_bytes, total_bytes)
        host = find_host_device(case.config)
        if warning := slow_dtype(case.config, host):
            yield Finding("dtype", warning, Level.WARNING)
        yield Finding("attention", host.attention)
        if warning := slow_packed_rows(case.config, host):
            yield Finding("attention", warning, Level.WARNING)


def _no_gpu(wants: str) -> Finding:
    if wants != "cuda":
        return Finding("GPUs", "none: ranks compute on CPUs")
    return Finding(
        "GPUs",
        "none, but training.device is 'cuda'; start the job on nodes with GPUs, with a build of "
        "torch for CUDA or ROCm, or set it to 'cpu'",
        Level.PROBLEM,
    )


def _room(config: ExperimentConfig, free: float, total: float) -> Iterator[Finding]:
    """Whether a GPU with so many bytes has room for what a run reserves, and for NCCL."""
    cluster, limit_bytes = config.cluster, config.cluster.device_memory_bytes
    tied = tied_weights(config.model, any_placement(config), cluster.n_shards)
    connected = communicator_bytes(cluster, paired_stages(tied))
    needed = reserved_bytes(limit_bytes) + connected + MARGIN_BYTES
    text = (
        f"cluster.device_memory_bytes is {_gb(limit_bytes)}, so a run needs {_gb(needed)}: "
        f"{_gb(reserved_bytes(limit_bytes))} that it reserves, about {_gb(connected)} for "
        f"connections and {_gb(MARGIN_BYTES)} for libraries"
    )
    advised = min(ADVISED_SHARE * total, PLANNED_SHARE * (free - connected - MARGIN_BYTES))
    if needed > free:
        remedy = f"but a GPU has {_gb(free)} free; lower it to {_gb(advised)}"
        yield Finding("GPU memory", f"{text}; {remedy}", Level.PROBLEM)
    elif limit_bytes > ADVISED_SHARE * total:
        remedy = f"lower it to {_gb(advised)}, {ADVISED_SHARE:.0%} of a GPU"
        yield Finding("GPU memory", f"{text}; {remedy}", Level.WARNING)
    else:
        yield Finding("GPU memory", text)


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / _GB:.1f} GB"
