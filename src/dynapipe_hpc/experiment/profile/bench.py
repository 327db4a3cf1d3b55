"""The bench of a profile: stacks of layers on all ranks, ready to be measured."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.architecture.t5 import DECODER, ENCODER
from dynapipe_hpc.data.errors import RunError
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, PackedRow
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.agreeing_shards import OutOfMemoryError
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.layer_profiles import NEAR_PAIRS, PAIRS, mean_layer
from dynapipe_hpc.experiment.profile.stack import (
    DECODER_STACKS,
    ENCODER_STACKS,
    N_SLICES,
    STACKS,
    Stack,
    StackShape,
)
from dynapipe_hpc.experiment.rank.channels import Channels
from dynapipe_hpc.experiment.rank.devices import RankDevice
from dynapipe_hpc.experiment.split_passes import kinds_with_halves
from dynapipe_hpc.job.job import Job
from dynapipe_hpc.models.collate import IterationTokens
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.planner.batch.slice_rule import MIN_SLICED_TOKENS
from dynapipe_hpc.planner.cost.cost_model import FloatArray

MIN_ROUNDS, MAX_ROUNDS = 2, 8

OnProgress = Callable[[float], None]
Measure = Callable[[Stack, MicroBatch], tuple[float, ...]]

WHOLE: tuple[Measure, ...] = (Stack.times_ms,)
"""Measurements of a round where plans keep backward passes whole."""

SPLIT: tuple[Measure, ...] = (Stack.times_ms, Stack.halves_ms)
"""Measurements of a round where plans may split them, of a micro-batch one after the other."""


class Rounds(NamedTuple):
    """Result of `measure_rounds`: number of micro-batches that fitted, and their typical costs."""

    n_microbatches: int
    costs: FloatArray


def measure_rounds(
    job: Job,
    stacks: Sequence[Stack],
    microbatches: Sequence[MicroBatch],
    *,
    repetition_s: float,
    on_progress: OnProgress,
    measures: Sequence[Measure] = WHOLE,
) -> Rounds:
    """Measures every micro-batch several times, the same on all ranks at a time (collective).

    Whole rounds over all micro-batches, smallest first, are repeated rather than single
    measurements, so that a temporary disturbance of the machine spreads over all of them. The first
    micro-batch that runs out of memory on any rank is left out, with all after it. Costs have shape
    (n_microbatches, n_stacks, 5 or 7) on the first rank, and are empty elsewhere.
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
    if not of_ranks:
        return Rounds(n, np.zeros(0))
    of_memory, of_times = (np.array(each) for each in zip(*of_ranks, strict=True))
    return Rounds(n, typical_costs(of_memory, of_times))


def typical_costs(memory: FloatArray, times_ms: FloatArray) -> FloatArray:
    """Typical costs for `separate_layers`, shape (n_microbatches, n_stacks, 5 or 7).

    The median over rounds is typical: a run is disturbed as often as its profile. What a forward
    pass takes longer before a split backward pass counts with that.

    `memory`: Fields of `StackMemory`, shape (n_ranks, n_microbatches, n_stacks, 3). `times_ms`:
    Fields of `StackTimes`, shape (n_ranks, n_rounds, n_microbatches, n_stacks, 2), or 5 with those
    of `StackHalves`.
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
        costs = _on_all(stacks, measures, microbatch)
        # The all-reduce also keeps the ranks in step.
        if job.comm.allreduce(not costs):
            break
        measured.append(costs)
        n_done += microbatch.padded_tokens
        on_progress(n_done / n_tokens)
    return np.array(measured)


def _on_all(
    stacks: Sequence[Stack], measures: Sequence[Measure], microbatch: MicroBatch
) -> list[tuple[float, ...]]:
    """Measurements of every stack; an empty list if one of them runs out of memory."""
    try:
        measurements = [[measure(stack, microbatch) for stack in stacks] for measure in measures]
        return [tuple(chain(*of_stack)) for of_stack in zip(*measurements, strict=True)]
    except OutOfMemoryError:
        return []


class StackGroup(NamedTuple):
    """Stacks of one kind of layers of a model, measured with the same micro-batches, ascending."""

    kind: str
    model: ModelShape
    shapes: Sequence[StackShape]
    microbatches: Sequence[MicroBatch]


def stack_groups(
    shape: ModelShape, grid: ProfileGrid, layout: Layout = Layout.PADDED
) -> list[StackGroup]:
    is_packed = layout is Layout.PACKED
    rows = grid.packed() if is_packed else grid.microbatches()
    if LAYER in shape.layer_counts:
        return [StackGroup(LAYER, shape, STACKS, rows)]
    pairs = grid.packed_pairs() if is_packed else grid.pairs()
    return [
        StackGroup(ENCODER, shape, ENCODER_STACKS, rows),
        StackGroup(DECODER, shape, DECODER_STACKS, pairs),
    ]


def has_slices(config: ExperimentConfig, layout: Layout) -> bool:
    """Whether slices are measured: plans may have some, and there are samples long enough."""
    may_slice = layout is Layout.PACKED and config.may_slice
    return may_slice and config.data.max_tokens >= _min_sliced_tokens(config)


def _min_sliced_tokens(config: ExperimentConfig) -> int:
    least = 0 if config.planner.slice_tokens else MIN_SLICED_TOKENS
    return max(N_SLICES * config.planner.token_multiple, least)


@dataclass(frozen=True, slots=True)
class Bench:
    job: Job
    config: ExperimentConfig
    tokens: IterationTokens
    channels: Channels
    on: RankDevice
    repetition_s: float

    def measure(
        self, mode: ExecutionMode, grid: ProfileGrid, on_progress: OnProgress
    ) -> dict[str, FloatArray]:
        """Typical costs by kind of layer, for `layer_profiles`; empty except on the first rank."""
        model = self.config.model
        kinds = family_of(model).layer_kinds(model)
        has_pairs = has_slices(self.config, mode.layout)
        groups = [
            (group, share)
            for alike, share in kinds
            for group in stack_groups(alike, grid, mode.layout)
        ]
        n_steps, steps = len(groups) + has_pairs * len(kinds), count()
        costs: dict[str, list[tuple[FloatArray, float]]] = {}

        def measure(group: StackGroup, share: float, measures: Sequence[Measure]) -> int:
            part = share_of(on_progress, next(steps), n_steps)
            known = self._rounds(group, mode, part, measures)
            if self.job.is_first:
                costs.setdefault(group.kind, []).append((known.costs, share))
            return known.n_microbatches

        times = SPLIT if kinds_with_halves(self.config, mode.recompute) else WHOLE
        n_microbatches = [measure(group, share, times) for group, share in groups][-1]
        if has_pairs and (row := self._longest_sample(n_microbatches, grid)):
            for alike, share in kinds:
                kind = PAIRS if math.isinf(alike.window) else NEAR_PAIRS
                measure(StackGroup(kind, alike, STACKS[:2], [row]), share, (Stack.pair_ms,))
        return {
            kind: np.sum([share * each for each, share in alike], axis=0)
            if kind in (PAIRS, NEAR_PAIRS)
            else mean_layer(alike)
            for kind, alike in costs.items()
        }

    def _longest_sample(self, n_microbatches: int, grid: ProfileGrid) -> PackedRow | None:
        alone = [row for row in grid.packed()[:n_microbatches] if len(row.sample_ids) == 1]
        return alone[-1] if alone[-1].row_tokens >= _min_sliced_tokens(self.config) else None

    def _rounds(
        self,
        group: StackGroup,
        mode: ExecutionMode,
        on_progress: OnProgress,
        measures: Sequence[Measure],
    ) -> Rounds:
        return measure_rounds(
            self.job,
            self._stacks(group),
            [replace(m, recompute=mode.recompute) for m in group.microbatches],
            repetition_s=self.repetition_s,
            on_progress=on_progress,
            measures=measures,
        )

    def _stacks(self, group: StackGroup) -> list[Stack]:
        shards, device = self.channels.collectives, self.on.device
        return [
            Stack(self.config, shape, self.tokens, model=group.model, shards=shards, device=device)
            for shape in group.shapes
        ]
