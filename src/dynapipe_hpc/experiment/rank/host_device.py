"""The kind of device that the ranks of this host compute on, and what cannot run on it."""

from dataclasses import dataclass

import torch

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.experiment.checks import check_costs, configured, missing_rate
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.experiment.rank.devices import dtype_of
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.machine import machine_facts
from dynapipe_hpc.job.print_error import warn
from dynapipe_hpc.models.attention import kernels_of, packed_obstacle


@dataclass(frozen=True, slots=True)
class HostDevice:
    """The kind of device that the ranks of this host compute on."""

    gpu_name: str | None = None  # None for CPUs
    attention: str = ""  # names of kernels, see `kernels_of`
    packed_obstacle: str = ""  # why packed rows have no kernel of their own on the GPU

    @property
    def facts(self) -> dict[str, str]:
        """Facts about it, for a run folder."""
        return {"device": self.gpu_name or "cpu", "attention": self.attention}


def find_host_device(config: ExperimentConfig) -> HostDevice:
    """The kind of device that ranks on this host compute on."""
    model, dtype = config.model, dtype_of(config)
    if config.training.device == "cpu" or not torch.cuda.device_count():
        return HostDevice(attention=kernels_of(model, dtype, torch.device("cpu")))
    gpu = torch.device("cuda")
    return HostDevice(
        gpu_name=torch.cuda.get_device_name(0),
        attention=kernels_of(model, dtype, gpu),
        packed_obstacle=packed_obstacle(model, dtype, gpu),
    )


def circumstances(config: ExperimentConfig, host: HostDevice, n_ranks: int) -> dict[str, str]:
    """Facts about a job that runs a configuration on this machine, for a table's provenance."""
    facts = {name: str(value) for name, value in machine_facts(n_ranks).items()}
    return (
        configured(config)
        | facts
        | {
            "device": "cuda" if host.gpu_name else "cpu",
            "processor": host.gpu_name or facts["processor"],
            "attention": host.attention,
        }
    )


def slow_dtype(config: ExperimentConfig, host: HostDevice) -> str:
    """A warning of a type in which GPUs are slow; empty if ranks compute on CPUs or in 16 bits."""
    dtype = config.training.dtype
    if dtype not in ("float32", "float64") or host.gpu_name is None:
        return ""
    return (
        f"training.dtype is {dtype}, in which a GPU computes at a fraction of its speed and "
        "activations take twice the memory or more; set it to 'bfloat16'"
    )


def slow_packed_rows(config: ExperimentConfig, host: HostDevice) -> str:
    """A warning of packed rows without a kernel of their own on a GPU; empty if there are none."""
    may_pack = config.planner.may_pack and not config.model.has_target_rows
    if not may_pack or not host.packed_obstacle:
        return ""
    return (
        f"flash attention for packed rows cannot run: {host.packed_obstacle}; until then documents "
        "of like length are padded to rows of one length, and long samples run whole"
    )


def slices_obstacle(config: ExperimentConfig, host: HostDevice) -> str:
    """Reason why slices cannot run on this host; empty if they can, or plans have none."""
    if not config.may_slice:
        return ""
    if host.packed_obstacle and config.planner.slice_tokens:
        raise InputError(
            f"planner.batch.slices is {config.planner.slice_tokens}, but slices need flash "
            f'attention on a GPU: {host.packed_obstacle}; or set slices to "auto"'
        )
    return host.packed_obstacle


def check_pairs(config: ExperimentConfig, host: HostDevice) -> None:
    """Checks that the attention of preference pairs can run on this host's devices."""
    if config.training.preference_loss is not None and host.packed_obstacle:
        raise InputError(
            f'training.objective is "{config.training.objective}", but preference pairs that share '
            f"their prompt need flash attention on a GPU: {host.packed_obstacle}"
        )


def prepare_for_host(job: Job, experiment: Experiment) -> HostDevice:
    """Checks an experiment against the devices of the first rank's host; all ranks together.

    It drops slices if they cannot run there. Returns the kind of device, on the first rank.
    """
    config = experiment.config
    host, obstacle = HostDevice(), ""
    with job.fail_together():
        if job.is_first:
            host = find_host_device(config)
            obstacle = slices_obstacle(config, host)
            check_pairs(config, host)
            here = circumstances(config, host, job.size)
            for warning in (
                check_costs(experiment.costs, here),
                missing_rate(config),
                slow_dtype(config, host),
                slow_packed_rows(config, host),
            ):
                if warning:
                    warn(warning)
    # All ranks plan, so that all must know what the first one's GPU cannot run.
    if job.broadcast(obstacle):
        experiment.drop_slices()
    return host
