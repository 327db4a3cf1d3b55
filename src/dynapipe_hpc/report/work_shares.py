"""Shares of a pass's floating-point operations: real work, padding, other documents, recomputation.

See docs/formats.md, "Where the time of ranks went".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dynapipe_hpc.architecture.architecture import Architecture
from dynapipe_hpc.architecture.part import Part, Side
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.row_length import RowLengths, positions, tokens_of
from dynapipe_hpc.planner.cost.cost_model import Shapes, Sizes
from dynapipe_hpc.planner.cost.tokens import Tokens


class WorkShares(NamedTuple):
    """Fractions of the operations of a pass; they add up to 1.

    Attributes:
        real: Operations that the samples need, each attending to itself only.
        padding: Operations on positions that hold no token, and on pairs with such a position.
        across_documents: Attention between samples that share a row, in dense packing.
        recomputed: Operations of the forward pass that the backward pass repeats.
    """

    real: float
    padding: float
    across_documents: float
    recomputed: float


class PassShares(NamedTuple):
    """Shares of the two passes of a micro-batch on a stage; a split backward pass is one."""

    forward: WorkShares
    backward: WorkShares


@dataclass(frozen=True, slots=True)
class PassWork:
    """Operations of passes, by the formulas of an architecture.

    Attributes:
        architecture: Architecture of the model.
        placement: Layers of every stage.
    """

    architecture: Architecture
    placement: Placement

    def shares(
        self, plans: Sequence[RankPlan], samples: Sequence[Sample]
    ) -> list[Sequence[PassShares]]:
        """Shares of every micro-batch of every plan, on the plan's stage.

        Stages that hold the same parts share a list.

        Args:
            plans: Plans of an iteration.
            samples: Global batch of the iteration.
        """
        by_id = {sample.sample_id: sample for sample in samples}
        parts = self.architecture.parts()
        held = self.placement.parts(self.architecture)
        found: dict[tuple[int, ...], Sequence[PassShares]] = {}
        keys = [(plan.replica, *held[plan.stage].values()) for plan in plans]
        for key, plan in zip(keys, plans, strict=True):
            found[key] = found.get(key) or [
                _shares(microbatch, self._lengths(microbatch, by_id), parts, held[plan.stage])
                for microbatch in plan.microbatches
            ]
        return [found[key] for key in keys]

    def _lengths(self, microbatch: MicroBatch, by_id: Mapping[int, Sample]) -> RowLengths:
        """Positions that each sample takes, without padding."""
        samples = [by_id[sample_id] for sample_id in microbatch.sample_ids]
        inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "target_tokens"))
        return positions(inputs, targets, self.architecture.has_target_rows)


def _shares(
    microbatch: MicroBatch,
    lengths: RowLengths,
    parts: Mapping[str, Part],
    held: Mapping[str, int],
) -> PassShares:
    forward = backward = padding = across = recomputed = 0.0
    for kind, part in parts.items():
        alone, in_rows, computed = _tokens(part.side, microbatch, lengths)
        work, count = part.work.forward, held[kind]
        repeated = part.recomputed_work(microbatch.recompute)
        forward += count * float(computed.times(work))
        backward += count * float(computed.times(part.work.backward))
        padding += count * float(computed.times(work) - in_rows.times(work))
        across += count * float(in_rows.pairs - alone.pairs) * work.per_pair
        recomputed += count * float(computed.times(repeated))
    if not forward:
        return PassShares(WorkShares(1, 0, 0, 0), WorkShares(1, 0, 0, 0))
    padding, across = padding / forward, across / forward
    again = recomputed / (backward + recomputed)
    real = 1 - padding - across
    rest = 1 - again
    return PassShares(
        WorkShares(real, padding, across, 0.0),
        WorkShares(real * rest, padding * rest, across * rest, again),
    )


def _tokens(
    side: Side, microbatch: MicroBatch, lengths: RowLengths
) -> tuple[Tokens, Tokens, Tokens]:
    """Tokens of the samples alone, of the rows without padding, and of all that is computed."""
    row_of = np.repeat(np.arange(microbatch.n_rows), [len(row) for row in microbatch.rows])
    alone = _total(side, np.ones(len(row_of)), *lengths)
    filled = [np.bincount(row_of, side_lengths) for side_lengths in lengths]
    in_rows = _total(side, np.ones(microbatch.n_rows), *filled)
    sizes = (microbatch.n_rows, microbatch.row_tokens, microbatch.target_tokens)
    computed = _total(side, *(np.array([size]) for size in sizes))
    if microbatch.layout is Layout.PACKED:  # attention stays within each sample
        return alone, in_rows._replace(pairs=alone.pairs), computed._replace(pairs=alone.pairs)
    return alone, in_rows, computed


def _total(side: Side, n_rows: Sizes, row_tokens: Sizes, target_tokens: Sizes) -> Tokens:
    found = Tokens.of(side, Shapes.padded(n_rows, row_tokens, target_tokens))
    return Tokens(*(np.asarray(np.sum(each)) for each in found))
