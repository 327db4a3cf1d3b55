"""Shares of a pass's floating-point operations: real work, padding, other documents, recomputation.

See docs/formats.md, "Where the time of ranks went".
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Self

import numpy as np
from pydantic import Field

from dynapipe_hpc.architecture.model_shape import ModelShape
from dynapipe_hpc.architecture.part import Part, Side
from dynapipe_hpc.architecture.placement import Placement
from dynapipe_hpc.data.microbatch import MicroBatch, PackedRow, Recompute, Slice, tokens_held
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.rank_plan import RankPlan
from dynapipe_hpc.planner.batch.packed_shapes import unseen_pairs
from dynapipe_hpc.planner.batch.row_length import RowLengths, positions, tokens_of
from dynapipe_hpc.planner.cost.cost_model import FloatArray, IntArray, Shapes, Sizes
from dynapipe_hpc.planner.cost.stage_parts import Tokens

Share = Annotated[float, Field(ge=0, le=1)]


class WorkShares(NamedTuple):
    """Fractions of the operations of a pass; they add up to 1."""

    real: Share
    padding: Share
    across_documents: Share
    recomputed: Share


class PassShares(NamedTuple):
    """Shares of the two passes of a micro-batch on a stage; a split backward pass counts as one."""

    forward: WorkShares
    backward: WorkShares


@dataclass(frozen=True, slots=True)
class PassWork:
    """Operations of passes, by the formulas of a family, on the stages of a placement."""

    shape: ModelShape
    placement: Placement

    def shares(
        self, plans: Sequence[RankPlan], samples: Sequence[Sample]
    ) -> list[Sequence[PassShares]]:
        """Shares of every micro-batch of every plan, on the plan's stage.

        Stages that hold the same parts share a list. Empty if the family has no closed forms.
        """
        by_id = {sample.sample_id: sample for sample in samples}
        if not (parts := self.shape.parts()):
            return []
        held = self.placement.parts(self.shape)
        tokens: dict[int, Mapping[Side, _Tokens]] = {}
        known_shares: dict[tuple[int, ...], Sequence[PassShares]] = {}
        keys = [(plan.replica, *held[plan.stage].values()) for plan in plans]
        for key, plan in zip(keys, plans, strict=True):
            if plan.replica not in tokens:
                tokens[plan.replica] = self._tokens(plan.microbatches, by_id, parts)
            if key not in known_shares:
                of_replica = tokens[plan.replica]
                known_shares[key] = _shares(plan.microbatches, of_replica, parts, held[plan.stage])
        return [known_shares[key] for key in keys]

    def _tokens(
        self,
        microbatches: Sequence[MicroBatch],
        by_id: Mapping[int, Sample],
        parts: Mapping[str, Part],
    ) -> "Mapping[Side, _Tokens]":
        samples = [by_id[sample_id] for m in microbatches for sample_id in m.sample_ids]
        inputs, targets = (tokens_of(samples, side) for side in ("input_tokens", "answer_tokens"))
        lengths = positions(inputs, targets, self.shape.has_target_rows)
        if any(microbatch.slice for microbatch in microbatches):
            held = (tokens_held(m, i, by_id[i].tokens) for m in microbatches for i in m.sample_ids)
            lengths = lengths._replace(row_tokens=np.array([len(tokens) for tokens in held]))
        return {
            side: _Tokens.from_microbatches(side, microbatches, lengths)
            for side in {part.side for part in parts.values()}
        }


class _Tokens(NamedTuple):
    """Tokens of micro-batches, in arrays of shape (n_microbatches,).

    They are tokens of single samples, of rows without padding, and of rows with padding.
    """

    alone: Tokens
    in_rows: Tokens
    computed: Tokens

    @classmethod
    def from_microbatches(
        cls, side: Side, microbatches: Sequence[MicroBatch], lengths: RowLengths
    ) -> Self:
        """Tokens of encoder or decoder; lengths are the tokens of each sample, without padding."""
        n_rows = np.array([m.n_rows for m in microbatches])
        n_samples = [len(row) for m in microbatches for row in m.rows]
        row_of = np.repeat(np.arange(len(n_samples)), n_samples)
        microbatch_of = np.repeat(np.arange(len(microbatches)), n_rows)

        def of_microbatches(row_lengths: Iterable[Sizes], owners: IntArray) -> Tokens:
            tokens = Tokens.from_shapes(side, Shapes.padded(np.ones(len(owners)), *row_lengths))
            return Tokens(*(_sums(of, owners, len(microbatches)) for of in tokens))

        filled = (_sums(of, row_of, len(n_samples)) for of in lengths)
        alone = of_microbatches(lengths, microbatch_of[row_of])
        alone = alone._replace(pairs=alone.pairs + _earlier_pairs(microbatches))
        in_rows = of_microbatches(filled, microbatch_of)
        row_tokens = np.array([m.row_tokens for m in microbatches])
        target_tokens = np.array([m.target_tokens for m in microbatches])
        computed = Tokens.from_shapes(side, Shapes.padded(n_rows, row_tokens, target_tokens))
        # Attention stays within each sample.
        packed = np.array([isinstance(m, PackedRow) for m in microbatches])
        rows_pairs, all_pairs = (
            np.where(packed, alone.pairs, of.pairs) for of in (in_rows, computed)
        )
        return cls(alone, in_rows._replace(pairs=rows_pairs), computed._replace(pairs=all_pairs))


def _earlier_pairs(microbatches: Sequence[MicroBatch]) -> IntArray:
    """Pairs of a token in a slice and a token before the slice.

    Each counts twice, as for causal attention. Pairs of a chosen and a rejected token, which do not
    attend to each other, are subtracted.
    """
    parts = [microbatch.slice or Slice(0, 0, 0) for microbatch in microbatches]
    earlier = [2 * part.begin * (part.end - part.begin) for part in parts]
    unseen = [unseen_pairs(m) if isinstance(m, PackedRow) else 0 for m in microbatches]
    pairs: IntArray = np.array(earlier) - np.array(unseen)
    return pairs


def _sums(values: Sizes, owners: IntArray, n_owners: int) -> FloatArray:
    return np.bincount(owners, values, n_owners).astype(np.float64)


def _shares(
    microbatches: Sequence[MicroBatch],
    tokens: Mapping[Side, _Tokens],
    parts: Mapping[str, Part],
    held: Mapping[str, int],
) -> list[PassShares]:
    modes = np.array([microbatch.recompute for microbatch in microbatches])
    operations = np.zeros((5, len(microbatches)))
    for kind, part in parts.items():
        alone, in_rows, computed = tokens[part.side]
        work, count = part.work.forward, held[kind]
        forward = computed.times(work)
        of_mode = [computed.times(part.recomputed_work(mode)) for mode in Recompute]
        operations += count * np.stack(
            [
                forward,
                computed.times(part.work.backward),
                forward - in_rows.times(work),
                (in_rows.pairs - alone.pairs) * work.per_pair,
                np.choose(modes, of_mode),
            ]
        )
    return [_pass_shares(of_microbatch) for of_microbatch in operations.T.tolist()]


def _pass_shares(operations: Sequence[float]) -> PassShares:
    """Shares from operations: forward, backward, of padding, across samples, recomputed."""
    forward, backward, padding, across, recomputed = operations
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
