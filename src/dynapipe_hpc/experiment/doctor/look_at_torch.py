"""The build of torch, and the GPUs that it sees."""

from collections.abc import Iterator

import torch

from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.case import Case
from dynapipe_hpc.experiment.doctor.finding import Finding, Level
from dynapipe_hpc.experiment.rank.circumstances import circumstances
from dynapipe_hpc.training.allocated_memory import MARGIN_BYTES

__all__ = ["circumstances", "look_at_build", "look_at_devices", "uses_gpus"]

_GB = 1e9


def look_at_build() -> Iterator[Finding]:
    """Versions of torch and of NCCL."""
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    yield Finding("torch", f"{torch.__version__}, {build}")
    yield Finding("NCCL", _nccl())


def _nccl() -> str:
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return "none in this build of torch; ranks on GPUs need it"
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(str(part) for part in version)


def uses_gpus(config: ExperimentConfig) -> bool:
    """Whether a run would use the GPUs that this process sees."""
    wants = config.training.device
    return wants == "cuda" or (wants == "auto" and torch.cuda.device_count() > 0)


def look_at_devices(case: Case) -> Iterator[Finding]:
    """The GPUs that this rank sees, and whether each has the memory that `cluster` asks for."""
    n_devices = torch.cuda.device_count()
    wants = case.config.training.device if case.config else "auto"
    if not n_devices:
        yield _no_gpu(wants)
        return
    for index in range(n_devices):
        free_bytes, total_bytes = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        sizes = f"{total_bytes / _GB:.1f} GB, {free_bytes / _GB:.1f} GB free"
        yield Finding(f"GPU {index}", f"{name}, {sizes}")
    if case.config and wants != "cpu":
        yield from _room(case.config.cluster.device_memory_bytes)


def _no_gpu(wants: str) -> Finding:
    if wants != "cuda":
        return Finding("GPUs", "none: ranks compute on CPUs")
    return Finding(
        "GPUs",
        "none, but training.device is 'cuda'; start the job on nodes with GPUs, with a build of "
        "torch for CUDA, or set it to 'cpu'",
        Level.PROBLEM,
    )


def _room(limit_bytes: int) -> Iterator[Finding]:
    smallest = min(torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count()))
    if limit_bytes > smallest - MARGIN_BYTES:
        yield Finding(
            "GPU memory",
            f"cluster.device_memory_bytes is {limit_bytes / _GB:.1f} GB, but a GPU has "
            f"{(smallest - MARGIN_BYTES) / _GB:.1f} GB available; lower it",
            Level.PROBLEM,
        )
