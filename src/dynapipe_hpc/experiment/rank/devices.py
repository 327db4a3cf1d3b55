"""The device on which a rank computes, what cannot run on it, and the layers of a stage there."""

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.errors import InputError, warn
from dynapipe_hpc.executor.clock import Clock, HostClock
from dynapipe_hpc.experiment.checks import configured, cost_warnings
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.experiment import Experiment
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.launch import device_index
from dynapipe_hpc.job.machine import machine_facts, usable_bytes
from dynapipe_hpc.models.attention import kernels_of, packed_obstacle
from dynapipe_hpc.models.family import StageOfFamily, family_of
from dynapipe_hpc.models.sharding.shards import Shards
from dynapipe_hpc.training.allocated_memory import (
    ADVISED_SHARE,
    MARGIN_BYTES,
    PLANNED_SHARE,
    reserve,
    reserved_bytes,
)

CPU = torch.device("cpu")
_LIMITS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Variables of CUDA and of ROCm that limit the GPUs which a process sees."""
CONNECTIONS_BYTES = 2_000_000_000
"""Memory of a GPU that is left for the buffers of communicators, before their number is known."""
SHARE_OF_HOST = 0.6
"""Share of the memory of a host that plans may fill where ranks compute on its cores."""


class CudaClock:
    """Clock that records moments as events on the compute stream, which runs behind the host."""

    def now(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def has_passed(self, moment: torch.cuda.Event) -> bool:
        """Whether the device has reached an event; any thread may ask."""
        # A thread starts with GPU 0, where its first query would create a context: 0.5 GiB on
        # another rank's GPU.
        torch.cuda.set_device(moment.device)
        return bool(moment.query())  # type: ignore[no-untyped-call]

    def ms_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed


@dataclass(frozen=True, slots=True)
class RankDevice:
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
        limits = [f"{name}='{os.environ[name]}'" for name in _LIMITS if name in os.environ]
        visible = f" ({', '.join(limits)})" if limits else ""
        raise InputError(
            f"training.device is 'cuda', but rank {job.rank} sees no GPU{visible}; start the "
            "job on nodes with GPUs (sbatch --gpus-per-node=N), with a build of torch for "
            "CUDA or ROCm, or set it to 'cpu'"
        )
    if not all(counts):
        return RankDevice(CPU)
    on_host = job.on_this_host()
    device = torch.device("cuda", device_index(on_host.rank, n_devices))
    torch.cuda.set_device(device)
    # torch warns if the first use of the device in an autograd thread is a matrix product.
    warnings.filterwarnings("ignore", "Attempting to run cuBLAS, but there was no current CUDA")
    name = str(torch.cuda.get_device_properties(device).uuid)
    identity = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    identities = on_host.all_gather_int(identity)
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


@dataclass(frozen=True, slots=True)
class HostDevice:
    """The kind of device that the ranks of this host compute on."""

    gpu_name: str | None = None  # None for CPUs
    attention: str = ""  # names of kernels, see `kernels_of`
    packed_obstacle: str = ""  # why packed rows have no kernel of their own on the GPU


def find_host_device(config: ExperimentConfig) -> HostDevice:
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
    facts["device"] = "cuda" if host.gpu_name else "cpu"
    facts["processor"] = host.gpu_name or facts["processor"]
    return configured(config) | facts | {"attention": host.attention}


def device_warnings(config: ExperimentConfig, host: HostDevice) -> Iterator[str]:
    """Warnings about what is slow on GPUs: wide types, and packed rows without their own kernel."""
    dtype = config.training.dtype
    if dtype in ("float32", "float64") and host.gpu_name is not None:
        yield (
            f"training.dtype is {dtype}, in which a GPU computes at a fraction of its speed and "
            "activations take twice the memory or more; set it to 'bfloat16'"
        )
    if host.packed_obstacle and config.planner.may_pack and not config.model.has_target_rows:
        yield (
            f"flash attention for packed rows cannot run: {host.packed_obstacle}; until then "
            "documents of similar length are padded to equal rows, and long samples run whole"
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


def prepare_for_host(job: Job, experiment: Experiment) -> HostDevice:
    """Checks an experiment against the devices of the first rank's host; all ranks together.

    It drops slices if they cannot run there. Returns the kind of device.
    """
    config = experiment.config

    def find() -> tuple[HostDevice, str]:
        host = find_host_device(config)
        obstacle = slices_obstacle(config, host)
        if config.training.preference_loss is not None and host.packed_obstacle:
            raise InputError(
                f'training.objective is "{config.training.objective}", but preference pairs that '
                f"share their prompt need flash attention on a GPU: {host.packed_obstacle}"
            )
        here = circumstances(config, host, job.size)
        for warning in (*cost_warnings(experiment, here), *device_warnings(config, host)):
            warn(warning)
        return host, obstacle

    # All ranks plan, so that all must know what the first one's GPU cannot run.
    host, obstacle = job.on_first(find)
    if obstacle:
        experiment.drop_slices()
    return host


def build_module(
    config: ExperimentConfig,
    placement: Placement,
    stage: int,
    shards: Shards,
    *,
    device: torch.device = CPU,
) -> StageOfFamily:
    """A shard of the layers of a stage, with initial weights."""
    return family_of(config.model)(
        config.model,
        placement.layers[stage],
        first=stage == 0,
        last=stage == placement.n_stages - 1,
        shards=shards,
        seed=config.training.seed,
        dtype=dtype_of(config),
        device=device,
    )
