"""Whether torch can be loaded, and the GPUs that it sees; it may be missing or broken."""

import platform
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from types import ModuleType

import dynapipe_hpc
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_torch, configured
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.doctor.finding import Case, Finding, Level

_MORE = "python -m torch.utils.collect_env"


def check_software(case: Case) -> Iterator[Finding]:  # noqa: ARG001 - as all looks
    yield Finding("dynapipe-hpc", f"{dynapipe_hpc.__version__}, Python {platform.python_version()}")
    torch = _torch()
    if isinstance(torch, str):
        yield Finding("torch", torch, Level.PROBLEM)
    else:
        yield Finding("torch", f"{metadata.version('torch')}; for its build and drivers: {_MORE}")


def check_gpus(case: Case) -> Iterator[Finding]:
    torch = _torch()
    if isinstance(torch, ModuleType):
        yield from torch.check_devices(case)


def computes_on_gpus(config: ExperimentConfig) -> bool:
    """Whether a run would use the GPUs that this process sees."""
    torch = _torch()
    return isinstance(torch, ModuleType) and bool(torch.uses_gpus(config))


def circumstances_here(config: ExperimentConfig, n_ranks: int) -> Mapping[str, str]:
    """Circumstances of a job; without torch, only those that the configuration decides."""
    torch = _torch()
    if isinstance(torch, ModuleType):
        return dict(torch.circumstances_here(config, n_ranks))
    return configured(config)


@cache
def _torch() -> ModuleType | str:
    """The module of checks that need torch, or the reason why torch cannot be loaded."""
    try:
        check_torch()
    except InputError as error:
        return str(error)
    from dynapipe_hpc.experiment.doctor import torch_checks

    return torch_checks
