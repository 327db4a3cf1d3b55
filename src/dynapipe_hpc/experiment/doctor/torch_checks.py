"""GPUs that torch sees, and what a run would warn of on them."""

from collections.abc import Iterator

import torch

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level
from dynapipe_hpc.experiment.rank.devices import (
    circumstances,
    device_warnings,
    find_device,
    find_host_device,
)
from dynapipe_hpc.job.launch import device_index

_GB = 1e9


def circumstances_here(config: ExperimentConfig, n_ranks: int) -> dict[str, str]:
    return circumstances(config, find_host_device(config), n_ranks)


def uses_gpus(config: ExperimentConfig) -> bool:
    wants = config.training.device
    return wants == "cuda" or (wants == "auto" and torch.cuda.device_count() > 0)


def check_devices(case: Case) -> Iterator[Finding]:
    """The GPU of this rank, and whether a run can use it as it should (collective)."""
    if case.config:
        try:
            find_device(case.job, case.config)
        except InputError as error:
            yield Finding("GPUs", str(error), Level.PROBLEM)
            return
    if not (n_devices := torch.cuda.device_count()):
        yield Finding("GPUs", "none: ranks compute on CPUs")
        return
    # No other: asking for its memory would put a context there, which other ranks' exclusive use
    # forbids.
    index = device_index(case.on_host.rank, n_devices)
    torch.cuda.set_device(index)
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    sizes = f"{total_bytes / _GB:.1f} GB, {free_bytes / _GB:.1f} GB free"
    yield Finding(f"GPU {index}", f"{torch.cuda.get_device_name(index)}, {sizes}")
    if case.config and case.config.training.device != "cpu":
        host = find_host_device(case.config)
        yield Finding("attention", host.attention)
        for warning in device_warnings(case.config, host):
            yield Finding("speed", warning, Level.WARNING)
