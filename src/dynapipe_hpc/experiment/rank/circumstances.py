"""Circumstances in which layers are measured or run, for the provenance of a cost table."""

import torch

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.check_costs import configured
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.rank.assemble import dtype_of
from dynapipe_hpc.experiment.rank.devices import gpu_name
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.models.attention import kernels_of, packed_obstacle


def circumstances(config: ExperimentConfig, n_ranks: int) -> dict[str, str]:
    """Facts about a job that runs a configuration on this machine, for a table's provenance."""
    facts = {name: str(value) for name, value in machine_facts(n_ranks).items()}
    gpu = gpu_name(config)
    return (
        configured(config)
        | facts
        | {
            "device": "cuda" if gpu else "cpu",
            "processor": gpu or facts["processor"],
            "attention": attention_kernels(config),
        }
    )


def attention_kernels(config: ExperimentConfig) -> str:
    """Names of the kernels that attention runs on this host's devices; see `kernels_of`."""
    return kernels_of(config.model, dtype_of(config), _device(config))


def slow_packed_rows(config: ExperimentConfig) -> str:
    """A warning of packed rows without a kernel of their own on a GPU; empty if there are none."""
    may_pack = config.planner.may_pack and not config.model.has_target_rows
    if not may_pack or gpu_name(config) is None:
        return ""
    obstacle = packed_obstacle(config.model, dtype_of(config), _device(config))
    return obstacle and (
        f"flash attention for packed rows cannot run: {obstacle}; until then documents of like "
        "length are padded to rows of one length, and long samples run whole"
    )


def slices_obstacle(config: ExperimentConfig) -> str:
    """Reason why slices cannot run on this host's devices; empty if they can, or plans have none.

    Raises:
        InputError: It needs flash attention on a GPU, which cannot run, and slices of so many
            tokens are asked for.
    """
    if not config.may_slice or gpu_name(config) is None:
        return ""
    obstacle = packed_obstacle(config.model, dtype_of(config), _device(config))
    if obstacle and config.planner.slice_tokens:
        raise InputError(
            f"planner.batch.slices is {config.planner.slice_tokens}, but slices need flash "
            f'attention on a GPU: {obstacle}; or set slices to "auto"'
        )
    return obstacle


def check_pairs(config: ExperimentConfig) -> None:
    """Checks that the attention of preference pairs can run on this host's devices.

    Raises:
        InputError: It needs flash attention on a GPU, which cannot run.
    """
    if config.training.preference_loss is None or gpu_name(config) is None:
        return
    if obstacle := packed_obstacle(config.model, dtype_of(config), _device(config)):
        raise InputError(
            f'training.objective is "{config.training.objective}", but preference pairs that share '
            f"their prompt need flash attention on a GPU: {obstacle}"
        )


def _device(config: ExperimentConfig) -> torch.device:
    return torch.device("cuda" if gpu_name(config) else "cpu")
