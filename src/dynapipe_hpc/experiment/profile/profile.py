"""The profile: costs of a run's layers, links and updates, measured on this machine."""

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product, starmap
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, Recompute
from dynapipe_hpc.executor.clock import Clock
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile.bench import Bench, OnProgress, has_slices, share_of
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import layer_profiles
from dynapipe_hpc.experiment.profile.stack import tokens_on_disk
from dynapipe_hpc.experiment.rank.assemble import build_module, build_optimizer
from dynapipe_hpc.experiment.rank.channels import Channels, connect
from dynapipe_hpc.experiment.rank.devices import (
    RankDevice,
    clock_of,
    dtype_of,
    find_device,
    wait_for,
)
from dynapipe_hpc.experiment.rank.host_device import (
    circumstances,
    find_host_device,
    slices_obstacle,
)
from dynapipe_hpc.experiment.split_passes import kinds_with_halves
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.models.tied_weights import Tied, tied_weights
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.planner.cost.table.profile_file import read_table, write_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    check_model,
    fingerprint_of,
)
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import MAX_ITERATIONS
from dynapipe_hpc.training.optimizer import Optimizer

# Measurements with different settings must not share a table.
SETTINGS = (
    *("processor", "ranks", "threads", "dtype", "zero_stage"),
    *("sequence_parallel", "shard_sums", "microbatches"),
)
_REMEDY = "name another output, or measure everything again with --force"
# The small tensor shows latency, the large one bandwidth. Between GPUs, a transfer of a few
# megabytes takes less time than starting it.
SMALL_NUMBERS = 16
LARGE_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 25}
# Round trips in a row, which a GPU makes without its host.
ROUND_TRIPS, REPETITIONS = 4, 5
N_UPDATES = 7
REPETITION_S = 18.0


def write_costs(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    output: Path,
    *,
    on_progress: OnProgress,
    force: bool = False,
) -> None:
    """Measures costs, and writes them after every mode, or completes a table; all ranks together.

    `on_progress`: Callback that takes the share done, from 0 to 1.
    """
    begun, obstacle = None, ""
    with job.fail_together():
        if job.is_first:
            obstacle = slices_obstacle(config, find_host_device(config))
    # All ranks measure the same.
    if job.broadcast(obstacle):
        config = config.without_slices()
    with job.fail_together():
        if job.is_first and not force:
            begun = begun_table(output, config, grid, job.size)
    tables = profile(
        job, config, grid, repetition_s=REPETITION_S, on_progress=on_progress, begun=begun
    )
    for table in tables:
        with job.fail_together():
            if table is not None:
                write_table(table, output)


def profile(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    *,
    repetition_s: float,
    on_progress: OnProgress,
    begun: ProfileTable | None = None,
) -> Iterator[ProfileTable | None]:
    """Measures the layers, links and updates that a run would execute; all ranks together.

    All ranks measure the same micro-batch at the same time, so that they compete for cores
    and memory as they do in a run; the shards of a stage measure together.

    `repetition_s`: Time, per layout and mode of recomputation, for the rounds over the grid after
    the first, which warms up. `on_progress`: Callback that takes the share done, from 0 to 1.
    `begun`: Table to add to, on the first rank; None to begin one. Returns the table so far on the
    first rank, None elsewhere: a new table first without layers, then each time after a layout and
    mode of recomputation.
    """
    torch.set_num_threads(config.training.threads)
    keep_freed_memory()
    modes = job.broadcast(modes_to_measure(config, begun))
    with job.fail_together():
        on = find_device(job, config)
    tied = _tied(job, config)
    channels = connect(config, tied, job, on)
    table = begun
    if not job.broadcast(begun is not None):
        table = _without_layers(job, config, grid, tied=tied, channels=channels, on=on)
        yield table
    with tokens_on_disk(grid.samples, config.model.vocab_size) as tokens:
        bench = Bench(job, config, tokens, channels, on, repetition_s)
        for k, mode in enumerate(modes):
            stacks = bench.measure(mode, grid, share_of(on_progress, k, len(modes)))
            if table is not None:
                new = layer_profiles(stacks, grid, config, mode)
                table = replace(table, layers={**table.layers, **new})
            yield table
    channels.close()


def _tied(job: Job, config: ExperimentConfig) -> Tied:
    """Tied weights; a job of one stage has no other stages to share them with."""
    if job.size != config.cluster.n_ranks:
        return {}
    return tied_weights(config.model, any_placement(config), config.cluster.n_shards)


def _without_layers(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    *,
    tied: Tied,
    channels: Channels,
    on: RankDevice,
) -> ProfileTable | None:
    """A table without layers, on the first rank; None elsewhere."""
    dtype = dtype_of(config)
    update = measure_update(
        job, _optimizer(job, config, tied, channels.collectives, device=on.device)
    )
    full_duplex = config.cluster.link.full_duplex
    link = measure_link(job, channels, dtype, on.device, full_duplex=full_duplex)
    if not job.is_first:
        return None
    return ProfileTable(
        model=fingerprint_of(config.model),
        layers={},
        element_bytes=dtype.itemsize,
        state_factor=state_factor(dtype.itemsize),
        update=update,
        link=link,
        provenance=_provenance(job, config, grid),
    )


def _optimizer(
    job: Job,
    config: ExperimentConfig,
    tied: Tied,
    collectives: Collectives,
    *,
    device: torch.device,
) -> Optimizer:
    """The optimizer of this rank's stage, as in a run; how long that is makes no difference."""
    if config.training.iterations is None:
        training = config.training.of_length(MAX_ITERATIONS)
        config = config.model_copy(update={"training": training})
    stage = config.cluster.stage_of(job.rank)
    with job.fail_together():
        module = build_module(config, any_placement(config), stage, collectives, device=device)
    return build_optimizer(config, tied, module, collectives)


def _provenance(job: Job, config: ExperimentConfig, grid: ProfileGrid) -> dict[str, str]:
    return measured_with(config, grid, job.size) | {
        "source": "measured; transient bytes without a kernel's own, except on GPUs",
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }


def begun_table(
    path: Path, config: ExperimentConfig, grid: ProfileGrid, n_ranks: int
) -> ProfileTable | None:
    """The table at `path`, to add to it, which has the same settings; None if there is no file."""
    if not path.exists():
        return None
    table = read_table(path)
    check_model(table.model, config.model, path)
    now = measured_with(config, grid, n_ranks)
    for name in SETTINGS:
        if table.provenance.get(name) != now[name]:
            raise InputError(
                f"{path}: was measured with {name} {table.provenance.get(name)}; this run "
                f"uses {now[name]}; {_REMEDY}"
            )
    return table


def measured_with(config: ExperimentConfig, grid: ProfileGrid, n_ranks: int) -> dict[str, str]:
    host = find_host_device(config)
    return circumstances(config, host, n_ranks) | {"microbatches": str(grid)}


def modes_to_measure(config: ExperimentConfig, begun: ProfileTable | None) -> list[ExecutionMode]:
    """Layouts with modes of recomputation that plans may use and that the table lacks.

    It lacks those, too, that it has without the halves of backward passes which plans may split, or
    without the slices which they may have.
    Padded rows are among them always: other plans are compared with those.
    """
    cost = config.planner.cost
    recomputes = cost.recompute_modes if isinstance(cost, ProfiledConfig) else (Recompute.NONE,)
    known = {} if begun is None else begun.layers
    layouts = (Layout.PADDED, Layout.PACKED) if config.planner.may_pack else (Layout.PADDED,)
    modes = starmap(ExecutionMode, product(layouts, recomputes))
    return [mode for mode in modes if not _is_measured(mode, config, known)]


def _is_measured(
    mode: ExecutionMode, config: ExperimentConfig, known: Mapping[LayerKey, LayerProfile]
) -> bool:
    *_, kind = config.model.layer_counts
    key = LayerKey(config.cluster.n_shards, mode.recompute.text, kind, mode.layout.text)
    if key not in known:
        return False
    needs_halves = kind in kinds_with_halves(config, mode.recompute)
    needs_pairs = has_slices(config, mode.layout)
    layer = known[key]
    lacks_halves = needs_halves and layer.input_ms is None
    has_windows = math.isfinite(config.model.window)
    has_pairs = layer.pair_ms is not None and (layer.near_pair_ms is not None or not has_windows)
    return not (lacks_halves or (needs_pairs and not has_pairs))


def measure_link(
    job: Job, channels: Channels, dtype: torch.dtype, device: torch.device, *, full_duplex: bool
) -> Link | None:
    """Bounces tensors between neighbouring stages, all pairs at once (collective).

    The median over pairs on the first rank, None elsewhere; None if there is one stage. Whether the
    link is full duplex is copied, not measured.
    """
    collectives, transport = channels.collectives, channels.transport
    rank = collectives.replica * collectives.n_stages + collectives.stage
    peer = paired_rank(rank, collectives.n_stages)
    clock = clock_of(device)
    small, large = (
        torch.zeros(n, dtype=dtype, device=device)
        for n in (SMALL_NUMBERS, LARGE_NUMBERS[device.type])
    )
    times = None
    if peer is not None:
        times = [
            transfer_ms(transport, rank, peer, tensor, clock=clock) for tensor in (small, large)
        ]
    transport.clear()
    pairs = [times for times in job.gather(times) if times is not None]
    if not pairs:
        return None
    latency_ms, large_ms = (median(column) for column in zip(*pairs, strict=True))
    bandwidth_ms = max(large_ms - latency_ms, 1e-6)
    return Link(
        latency_ms=latency_ms, bytes_per_ms=large.nbytes / bandwidth_ms, full_duplex=full_duplex
    )


def paired_rank(rank: int, n_stages: int) -> int | None:
    """The rank of the neighbouring stage that forms a pair with `rank`, both as plans number them.

    Stages 0 and 1, 2 and 3, and so on of each replica are pairs, since only neighbouring stages are
    connected. The last of an odd number of stages has no peer: None.
    """
    stage = rank % n_stages
    peer_stage = stage ^ 1
    return rank - stage + peer_stage if peer_stage < n_stages else None


def transfer_ms(
    transport: Transport[Tensor], rank: int, peer: int, tensor: Tensor, *, clock: Clock[Any]
) -> float:
    """Time of one transfer: half of a round trip, of several in a row. Peers call it together.

    Activations go to the higher rank and gradients to the lower one, as in a plan.
    """
    _bounce(transport, rank, peer, tensor)  # warms up
    times = []
    for _ in range(REPETITIONS):
        start = clock.now()
        for _ in range(ROUND_TRIPS):
            _bounce(transport, rank, peer, tensor)
        times.append(clock.ms_between(start, clock.now()) / (2 * ROUND_TRIPS))
    return median(times)


def _bounce(transport: Transport[Tensor], rank: int, peer: int, tensor: Tensor) -> None:
    out, back = Payload.ACTIVATION, Payload.GRADIENT
    if rank > peer:
        out, back = back, out
    if rank < peer:
        transport.start_send(0, out, peer, tensor)
    transport.start_receive(0, back, peer, tuple(tensor.shape), slot=0)
    transport.wait_receive(0, back)
    if rank > peer:
        transport.start_send(0, out, peer, tensor)
    transport.wait_send(0, out)


def measure_update(job: Job, optimizer: Optimizer) -> UpdateProfile:
    """Times the all-reduce of gradients and the optimizer step of this rank's stage (collective).

    A job of one stage reduces nothing, so its table holds no time for the all-reduce. The median
    over ranks and repetitions on the first rank, zeros elsewhere.
    """
    times = [_update_ms(job, optimizer) for _ in range(1 + N_UPDATES)][1:]
    n_bytes = optimizer.parameters.weight_bytes
    per_byte = [median(column) / n_bytes for column in zip(*times, strict=True)]
    by_rank = job.gather(per_byte)
    if not by_rank:
        return UpdateProfile()
    reduce, step = (median(column) for column in zip(*by_rank, strict=True))
    return UpdateProfile(reduce_ms_per_byte=reduce, optimizer_ms_per_byte=step)


def _update_ms(job: Job, optimizer: Optimizer) -> tuple[float, float]:
    gradients = optimizer.parameters.gradients.fill_(1e-3)
    wait_for(gradients.device)
    job.barrier()
    start_s = time.perf_counter()
    optimizer.reduce_gradients()
    wait_for(gradients.device)
    reduced_s = time.perf_counter()
    optimizer.step()
    wait_for(gradients.device)
    end_s = time.perf_counter()
    return 1e3 * (reduced_s - start_s), 1e3 * (end_s - reduced_s)
