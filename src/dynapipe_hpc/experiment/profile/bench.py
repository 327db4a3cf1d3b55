"""The bench of a profile: stacks of layers on all ranks, ready to be measured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import LAYER
from dynapipe_hpc.architecture.t5 import DECODER, ENCODER
from dynapipe_hpc.data.microbatch import ExecutionMode, Layout, MicroBatch, PackedRow
from dynapipe_hpc.experiment.config import ExperimentConfig
from dynapipe_hpc.experiment.profile.grid import ProfileGrid
from dynapipe_hpc.experiment.profile.rounds import (
    SPLIT,
    WHOLE,
    Measure,
    OnProgress,
    Rounds,
    measure_rounds,
    share_of,
)
from dynapipe_hpc.experiment.profile.separate_layers import mean_layer
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
from dynapipe_hpc.models.family import family_of
from dynapipe_hpc.models.tokens.iteration_tokens import IterationTokens
from dynapipe_hpc.planner.batch.slice_rule import MIN_SLICED_TOKENS
from dynapipe_hpc.planner.cost.cost_model import FloatArray

PAIRS, NEAR_PAIRS = "pairs", "near pairs"
"""Names of the measurements of slices, times per pair of tokens: of all, of those in windows."""


class StackGroup(NamedTuple):
    """Stacks that are measured with the same micro-batches.

    Attributes:
        kind: Kind of their layers.
        model: Model that their layers are of.
        shapes: Shapes of the stacks.
        microbatches: The micro-batches, smallest first.
    """

    kind: str
    model: ModelShape
    shapes: Sequence[StackShape]
    microbatches: Sequence[MicroBatch]


def stack_groups(
    shape: ModelShape, grid: ProfileGrid, layout: Layout = Layout.PADDED
) -> list[StackGroup]:
    """The groups of stacks to measure for a model."""
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
    """Everything needed to measure stacks of layers on this rank, together with all others."""

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
        groups = [
            (group, share)
            for alike, share in kinds
            for group in stack_groups(alike, grid, mode.layout)
        ]
        has_pairs = has_slices(self.config, mode.layout)
        n_groups, n_more = len(groups), len(kinds) if has_pairs else 0
        costs: dict[str, list[tuple[FloatArray, float]]] = {}
        for k, (group, share) in enumerate(groups):
            part = share_of(on_progress, k, n_groups + n_more)
            known = self._rounds(group, mode, part)
            if self.job.is_first:
                costs.setdefault(group.kind, []).append((known.costs, share))
        measured = {kind: mean_layer(alike) for kind, alike in costs.items()}
        if has_pairs and (row := self._longest_sample(known.n_microbatches, grid)):
            for k, (alike, share) in enumerate(kinds):
                group = StackGroup(PAIRS, alike, STACKS[:2], [row])
                part = share_of(on_progress, n_groups + k, n_groups + n_more)
                known = self._rounds(group, mode, part, measures=(Stack.pair_ms,))
                if self.job.is_first:
                    of_kind = PAIRS if math.isinf(alike.window) else NEAR_PAIRS
                    costs.setdefault(of_kind, []).append((known.costs, share))
        for kind in (PAIRS, NEAR_PAIRS):
            if kind in costs:
                measured[kind] = np.sum([share * of_kind for of_kind, share in costs[kind]], axis=0)
        return measured

    def _longest_sample(self, n_microbatches: int, grid: ProfileGrid) -> PackedRow | None:
        """The longest sample that ran alone, if it is long enough for slices."""
        alone = [row for row in grid.packed()[:n_microbatches] if len(row.sample_ids) == 1]
        return alone[-1] if alone[-1].row_tokens >= _min_sliced_tokens(self.config) else None

    def _rounds(
        self,
        group: StackGroup,
        mode: ExecutionMode,
        on_progress: OnProgress,
        measures: Sequence[Measure] = (),
    ) -> Rounds:
        if not measures:
            measures = SPLIT if kinds_with_halves(self.config, mode.recompute) else WHOLE
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
