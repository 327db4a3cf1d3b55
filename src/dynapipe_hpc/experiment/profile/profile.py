"""The profile: costs of a run's layers, links and updates, measured on this machine."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count, product, starmap
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.architecture.t5 import DECODER, ENCODER
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, PaddedRows, Recompute
from dynapipe_hpc.executor.clock import Clock
from dynapipe_hpc.executor.transport.transport import Transport
from dynapipe_hpc.experiment.checks import kinds_with_halves
from dynapipe_hpc.experiment.config import ExperimentConfig, any_placement
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import (
    NEAR_PAIRS,
    PAIRS,
    layer_profiles,
    mean_layer,
)
from dynapipe_hpc.experiment.profile.stack import (
    DECODER_STACKS,
    ENCODER_STACKS,
    N_SLICES,
    STACKS,
    OutOfMemoryError,
    Stack,
    StackShape,
    tokens_on_disk,
)
from dynapipe_hpc.experiment.rank.channels import Channels, connect
from dynapipe_hpc.experiment.rank.devices import (
    build_module,
    circumstances,
    clock_of,
    dtype_of,
    find_device,
    find_host_device,
    slices_obstacle,
    wait_for,
)
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.job.process import keep_freed_memory
from dynapipe_hpc.models.batch import IterationTokens
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.plan.cluster import Link
from dynapipe_hpc.plan.instruction import Payload
from dynapipe_hpc.planner.batch.slice_rule import MIN_SLICED_TOKENS
from dynapipe_hpc.planner.cost.config import ProfiledConfig
from dynapipe_hpc.planner.cost.cost_model import FloatArray
from dynapipe_hpc.planner.cost.model_state import state_factor
from dynapipe_hpc.planner.cost.table.profile_file import write_table
from dynapipe_hpc.planner.cost.table.profile_table import (
    LayerKey,
    LayerProfile,
    ProfileTable,
    UpdateProfile,
    fingerprint_of,
)
from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.config import MAX_ITERATIONS
from dynapipe_hpc.training.optimizer import Optimizer
from dynapipe_hpc.training.tied_copies import Tied, tied_weights

# The small tensor shows latency, the large one bandwidth. Between GPUs, a transfer of a few
# megabytes takes less time than starting it.
SMALL_NUMBERS = 16
LARGE_NUMBERS = {"cpu": 1 << 20, "cuda": 1 << 25}
# Round trips in a row, which a GPU makes without its host.
ROUND_TRIPS, REPETITIONS = 4, 5
N_UPDATES = 7
REPETITION_S = 18.0
MIN_ROUNDS, MAX_ROUNDS = 2, 8

OnProgress = Callable[[float], None]
"""Callback that takes the share done, from 0 to 1."""
Measure = Callable[[Stack, MicroBatch], tuple[float, ...]]

WHOLE: tuple[Measure, ...] = (Stack.times_ms,)
"""Measurements of a round if plans never split backward passes."""

SPLIT: tuple[Measure, ...] = (Stack.times_ms, Stack.halves_ms)
"""Measurements of a round if plans may split them; both are made in turn for each micro-batch."""


def write_costs(
    job: Job, config: ExperimentConfig, grid: ProfileGrid, output: Path, *, on_progress: OnProgress
) -> None:
    """Measures costs, and writes them as a table; all ranks together."""
    # All ranks measure the same.
    if job.on_first(lambda: slices_obstacle(config, find_host_device(config))):
        config = config.without_slices()
    table = profile(job, config, grid, repetition_s=REPETITION_S, on_progress=on_progress)
    job.on_first(lambda: write_table(table, output))


def profile(
    job: Job,
    config: ExperimentConfig,
    grid: ProfileGrid,
    *,
    repetition_s: float,
    on_progress: OnProgress,
) -> ProfileTable:
    """Measures the layers, links and updates that a run would execute; all ranks together.

    All ranks measure the same micro-batch at the same time, so that they compete for cores
    and memory as they do in a run; the shards of a stage measure together.

    `repetition_s`: Time, per layout and mode of recomputation, for the rounds over the grid after
    the first round, which warms up. Returns the table, on all ranks.
    """
    torch.set_num_threads(config.training.threads)
    keep_freed_memory()
    with job.fail_together():
        on = find_device(job, config)
    tied: Tied = {}  # a job of one stage has no other stages to share weights with
    if job.size == config.cluster.n_ranks:
        tied = tied_weights(config.model, any_placement(config), config.cluster.n_shards)
    channels, dtype = connect(config, tied, job, on), dtype_of(config)
    collectives, modes = channels.collectives, modes_to_measure(config)
    update = measure_update(job, _optimizer(job, config, tied, collectives, device=on.device))
    full_duplex = config.cluster.link.full_duplex
    link = measure_link(job, channels, dtype, on.device, full_duplex=full_duplex)
    layers: dict[LayerKey, LayerProfile] = {}
    with tokens_on_disk(grid.samples, config.model.vocab_size) as tokens:
        bench = Bench(job, config, grid, tokens, collectives, on.device, repetition_s)
        for k, mode in enumerate(modes):
            stacks = bench.measure(mode, share_of(on_progress, k, len(modes)))
            layers |= layer_profiles(stacks, grid, config, mode)
    channels.close()
    return ProfileTable(
        model=fingerprint_of(config.model),
        layers=layers,
        element_bytes=dtype.itemsize,
        state_factor=state_factor(dtype.itemsize),
        update=update,
        link=link,
        provenance=circumstances(config, find_host_device(config), job.size)
        | {
            "microbatches": str(grid),
            "source": "measured; transient bytes without a kernel's own, except on GPUs",
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        },
    )


def modes_to_measure(config: ExperimentConfig) -> list[ExecutionMode]:
    """Combinations of layout and mode of recomputation that plans may use.

    Padded rows are always included, because other plans are compared with plans of padded rows.
    """
    cost = config.planner.cost
    recomputes = cost.recompute_modes if isinstance(cost, ProfiledConfig) else (Recompute.NONE,)
    layouts = (Layout.PADDED, Layout.PACKED) if config.planner.may_pack else (Layout.PADDED,)
    return list(starmap(ExecutionMode, product(layouts, recomputes)))


def has_slices(config: ExperimentConfig, layout: Layout) -> bool:
    """Whether slices are measured: plans may have some, and there are samples long enough."""
    may_slice = layout is Layout.PACKED and config.may_slice
    return may_slice and config.data.max_tokens >= _min_sliced_tokens(config)


def _min_sliced_tokens(config: ExperimentConfig) -> int:
    least = 0 if config.planner.slice_tokens else MIN_SLICED_TOKENS
    return max(N_SLICES * config.planner.token_multiple, least)


@dataclass(frozen=True, slots=True)
class Bench:
    """Stacks of layers on all ranks, which measure micro-batches of random tokens."""

    job: Job
    config: ExperimentConfig
    grid: ProfileGrid
    tokens: IterationTokens
    collectives: Collectives
    device: torch.device
    repetition_s: float

    def measure(self, mode: ExecutionMode, on_progress: OnProgress) -> dict[str, FloatArray]:
        """Typical costs by kind of layer, for `layer_profiles`."""
        model, groups = self.config.model, self._groups()
        kinds = family_of(model).layer_kinds(model)
        has_pairs = has_slices(self.config, mode.layout)
        measures = SPLIT if kinds_with_halves(self.config, mode.recompute) else WHOLE
        n_steps, steps = (len(groups) + has_pairs) * len(kinds), count()

        def measure(
            shape: ModelShape,
            stacks: Sequence[StackShape],
            rows: Sequence[PaddedRows],
            measures: Sequence[Measure],
        ) -> FloatArray:
            is_packed = mode.layout is Layout.PACKED
            microbatches = [self.grid.end_to_end(row) if is_packed else row for row in rows]
            stack_of = partial(Stack, model=shape, shards=self.collectives, device=self.device)
            return measure_rounds(
                self.job,
                [stack_of(self.config, each, self.tokens) for each in stacks],
                [replace(each, recompute=mode.recompute) for each in microbatches],
                repetition_s=self.repetition_s,
                on_progress=share_of(on_progress, next(steps), n_steps),
                measures=measures,
            )

        costs: dict[str, list[tuple[FloatArray, float]]] = {}
        for shape, share in kinds:
            for kind, stacks, rows in groups:
                known = measure(shape, stacks, rows, measures)
                costs.setdefault(kind, []).append((known, share))
        typical = {kind: mean_layer(alike) for kind, alike in costs.items()}
        alone = [row for row in self.grid.microbatches()[: len(known)] if row.n_rows == 1]
        row = alone[-1]  # the longest sample that fits
        if has_pairs and row.row_tokens >= _min_sliced_tokens(self.config):
            for shape, share in kinds:
                kind = PAIRS if math.isinf(shape.window) else NEAR_PAIRS
                times = share * measure(shape, STACKS[:2], [row], (Stack.pair_ms,))
                typical[kind] = typical.get(kind, 0) + times
        return typical

    def _groups(self) -> list[tuple[str, Sequence[StackShape], Sequence[PaddedRows]]]:
        """Stacks of each kind of layers, and the rows that they measure, ascending."""
        rows = self.grid.microbatches()
        if LAYER in self.config.model.layer_counts:
            return [(LAYER, STACKS, rows)]
        return [(ENCODER, ENCODER_STACKS, rows), (DECODER, DECODER_STACKS, self.grid.pairs())]


def measure_rounds(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    *,
    repetition_s: float,
    on_progress: OnProgress,
    measures: Sequence[Measure] = WHOLE,
) -> FloatArray:
    """Measures every micro-batch several times; all ranks measure the same one (collective).

    Complete rounds over all micro-batches, smallest first, are repeated rather than single
    measurements, so that a temporary disturbance of the machine spreads over all of them. The first
    micro-batch that runs out of memory on any rank is left out, with all after it. Returns typical
    costs, shape (n_microbatches, n_stacks, 5 or 7).
    """
    start_s = time.perf_counter()
    # Assumes the largest number of rounds, so that progress never goes backwards.
    part = share_of(on_progress, 0, 1 + MAX_ROUNDS)
    memory = _round(job, stacks, (Stack.memory,), microbatches, on_progress=part)
    n = len(memory)
    if not n:
        raise RunError(
            f"not even the smallest micro-batch, of {microbatches[0].padded_tokens} padded tokens, "
            "fits into memory; use a device with more memory, or a smaller model"
        )
    n_affordable = int(repetition_s / len(measures) / (time.perf_counter() - start_s))
    n_rounds = job.broadcast(min(MAX_ROUNDS, max(MIN_ROUNDS, n_affordable)))
    times_ms: list[FloatArray] = []
    for k in range(n_rounds):
        part = share_of(on_progress, 1 + k, 1 + n_rounds)
        times_ms.append(_round(job, stacks, measures, microbatches[:n], on_progress=part))
        n = len(times_ms[-1])
    of_ranks = job.gather((memory[:n], np.stack([of_round[:n] for of_round in times_ms])))
    typical = np.zeros(0)
    if job.is_first:
        typical = typical_costs(*(np.array(each) for each in zip(*of_ranks, strict=True)))
    return job.broadcast(typical)


def typical_costs(memory: FloatArray, times_ms: FloatArray) -> FloatArray:
    """Typical costs for `separate_layers`, shape (n_microbatches, n_stacks, 5 or 7).

    The median over rounds is typical: a run is disturbed as often as its profile. If a forward pass
    takes longer before a split backward pass, the difference counts with the backward pass.

    `memory`: Fields of `StackMemory`, shape (n_ranks, n_microbatches, n_stacks, 3). `times_ms`:
    Times from `Stack.times_ms`, shape (n_ranks, n_rounds, n_microbatches, n_stacks, 2), or 5 with
    the times from `Stack.halves_ms`.
    """
    by_rank = np.median(times_ms, axis=1)
    # The last three are of split passes, if these were measured.
    whole, halves = by_rank[..., :2], by_rank[..., 3:]
    halves[..., :1] += by_rank[..., 2:3] - by_rank[..., :1]
    typical: FloatArray = np.median(np.concatenate([whole, memory, halves], axis=-1), axis=0)
    return typical


def share_of(on_progress: OnProgress, n_done: int, n_parts: int) -> OnProgress:
    return lambda share: on_progress((n_done + share) / n_parts)


def _round(
    job: Job,
    stacks: Sequence[Stack],
    measures: Sequence[Measure],
    microbatches: Sequence[MicroBatch],
    *,
    on_progress: OnProgress,
) -> FloatArray:
    measured: list[list[tuple[float, ...]]] = []
    n_tokens = sum(microbatch.padded_tokens for microbatch in microbatches)
    n_done = 0
    for microbatch in microbatches:
        costs: list[tuple[float, ...]] = []
        with suppress(OutOfMemoryError):
            of_measures = [[measure(each, microbatch) for each in stacks] for measure in measures]
            costs = [tuple(chain(*of_stack)) for of_stack in zip(*of_measures, strict=True)]
        # The all-reduce also keeps the ranks in step.
        if job.comm.allreduce(not costs):
            break
        measured.append(costs)
        n_done += microbatch.padded_tokens
        on_progress(n_done / n_tokens)
    return np.array(measured)


def _optimizer(
    job: Job,
    config: ExperimentConfig,
    tied: Tied,
    collectives: Collectives,
    *,
    device: torch.device,
) -> Optimizer:
    """The optimizer of this rank's stage, as in a run of any length."""
    if config.training.iterations is None:
        training = config.training.of_length(MAX_ITERATIONS)
        config = config.model_copy(update={"training": training})
    stage = config.cluster.stage_of(job.rank)
    with job.fail_together():
        module = build_module(config, any_placement(config), stage, collectives, device=device)
    shares_state = config.cluster.zero_stage == 1
    return Optimizer(module, config.training, collectives, shares_state=shares_state, tied=tied)


def measure_link(
    job: Job, channels: Channels, dtype: torch.dtype, device: torch.device, *, full_duplex: bool
) -> Link | None:
    """Bounces tensors between neighbouring stages, all pairs at once (collective).

    Returns the median over pairs; None if there is one stage. Whether the link is full duplex is
    not measured, but taken from the configuration.
    """
    collectives, transport = channels.collectives, channels.transport
    rank = collectives.replica * collectives.n_stages + collectives.stage
    peer = paired_rank(rank, collectives.n_stages)
    clock = clock_of(device)
    small, large = (
        torch.zeros(n, dtype=dtype, device=device)
        for n in (SMALL_NUMBERS, LARGE_NUMBERS[device.type])
    )
    times = list[float]()
    if peer is not None:
        times = [transfer_ms(transport, rank, peer, n, clock=clock) for n in (small, large)]
    transport.clear()
    if not (typical := _medians(job, times)):
        return None
    latency_ms, large_ms = typical
    bandwidth_ms = max(large_ms - latency_ms, 1e-6)
    return Link(
        latency_ms=latency_ms, bytes_per_ms=large.nbytes / bandwidth_ms, full_duplex=full_duplex
    )


def _medians(job: Job, numbers: Sequence[float]) -> list[float]:
    """Median of each number over the ranks that have numbers (collective)."""
    of_ranks = [each for each in job.gather(numbers) if each]
    return job.broadcast([median(column) for column in zip(*of_ranks, strict=True)])


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
    """Time of one transfer: half a round trip, from several trips in a row. Peers call it together.

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

    A job of one stage reduces nothing, so its table holds no time for the all-reduce. Times are
    medians over ranks and repetitions.
    """
    times = [_update_ms(job, optimizer) for _ in range(1 + N_UPDATES)][1:]
    n_bytes = optimizer.parameters.weight_bytes
    reduce, step = _medians(job, [median(each) / n_bytes for each in zip(*times, strict=True)])
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
