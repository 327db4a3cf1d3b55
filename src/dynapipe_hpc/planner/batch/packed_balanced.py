"""Packed rows of about the same work, small ones at both ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dynapipe_hpc.data.microbatch import Layout, MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.balanced_groups import balanced_groups
from dynapipe_hpc.planner.batch.objective import bottleneck_ms
from dynapipe_hpc.planner.batch.packed_rows import packed_replicas, packed_tokens
from dynapipe_hpc.planner.batch.row_length import padded, row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray, Shapes

SHORT_ROWS = 8
"""Rows that, together, have the tokens of the longest sample, to tell work from pairs of tokens."""


@dataclass(frozen=True, slots=True)
class PackedBalanced:
    """Balances the work of replicas, then of their micro-batches, by largest differencing.

    Every replica has as many micro-batches as the one with the most tokens needs, or one per
    sample. The largest are in the middle: the pipeline fills and drains with small ones. The
    projects run it with 1F1B, here planner.schedule.rules = ["1f1b"].

    Attributes:
        tokens_per_microbatch: Mean tokens of a micro-batch at most; work is what is balanced, so
            that single ones may have more.

    Source:
        verl (`utils/seqlen_balancing.py`: number, differencing and order), slime
        (`balance_by_flops`) and prime-rl (swaps).
    """

    tokens_per_microbatch: int

    def __str__(self) -> str:
        """The rule and its setting."""
        return f"packed balanced, {self.tokens_per_microbatch} tokens"

    def __call__(
        self, samples: Sequence[Sample], cost: CostModel, cluster: Cluster
    ) -> list[list[MicroBatch]]:
        """Groups the samples of all replicas, see `ReplicaRule`."""
        tokens = packed_tokens(samples, cost)
        work = pair_work(samples, cost) if cost.is_encoder_decoder else packed_work(samples, cost)
        replicas = [np.array(items) for items in balanced_groups(work, cluster.n_replicas)]
        most_tokens = max(int(tokens[items].sum()) for items in replicas)
        n_groups = -(-most_tokens // self.tokens_per_microbatch)
        groups = [_ordered_groups(work, items, n_groups) for items in replicas]
        return packed_replicas(samples, groups, cost, cluster)


def pair_work(samples: Sequence[Sample], cost: CostModel) -> FloatArray:
    """Work of samples with inputs and targets on all stages, shape (n_samples,).

    It is what a second row of the same lengths adds to the first. Where the cost model does not
    know these, work is tokens.

    Args:
        samples: The samples.
        cost: Cost model of an encoder-decoder model, of whose modes the first is used.
    """
    inputs, targets = row_lengths(samples, is_encoder_decoder=True)
    packed, one = cost.of_layout(Layout.PACKED), np.ones_like(inputs)
    first_ms, both_ms = (
        packed.stage_costs(
            Shapes.padded(n_rows * one, inputs, targets), cost.recompute_modes[0]
        ).work_ms.sum(axis=1)
        for n_rows in (1, 2)
    )
    if not np.isfinite(both_ms).all():
        return packed_tokens(samples, cost).astype(np.float64)
    return np.asarray(np.maximum(both_ms - first_ms, 0.0))


def packed_work(samples: Sequence[Sample], cost: CostModel) -> FloatArray:
    """Work of samples in packed rows, b L + c L^2 for L tokens, shape (n_samples,).

    Of a preference pair, the tokens that attend to each other take the place of L^2.

    It is that of a decoder-only model. The projects count floating-point operations. Where
    attention is far from the peak rate, that underestimates c, and rows of long samples take longer
    than others. So b and c come from the cost model: the longest sample alone, and as many tokens
    in shorter rows. Where the cost model does not know these, work is tokens.

    Args:
        samples: The samples.
        cost: Cost model, of whose modes the first is used.
    """
    tokens, pairs = (tokens_of(samples, name) for name in ("tokens", "attention_pairs"))
    longest = padded(int(tokens.max()))
    n_rows = np.array([1, SHORT_ROWS])
    row_tokens = longest // n_rows
    shapes = Shapes.padded(n_rows, row_tokens, np.zeros_like(n_rows))
    packed = cost.of_layout(Layout.PACKED)
    per_token = bottleneck_ms(packed.stage_costs(shapes, cost.recompute_modes[0])) / longest
    if not np.isfinite(per_token).all():
        return tokens.astype(np.float64)
    of_pair = max(0.0, float((per_token[0] - per_token[1]) / (row_tokens[0] - row_tokens[1])))
    of_token = max(0.0, float(per_token[0] - of_pair * longest))
    return np.asarray(of_token * tokens + of_pair * pairs)


def small_at_both_ends(work: FloatArray) -> list[int]:
    """Order of items of the given work with the largest in the middle, those beside it next."""
    largest_first: list[int] = np.argsort(-work, kind="stable").tolist()
    return largest_first[::2][::-1] + largest_first[1::2]


def _ordered_groups(work: FloatArray, items: IntArray, n_groups: int) -> list[list[int]]:
    """Groups of some of the items, in the order in which they enter the pipeline."""
    groups = balanced_groups(work[items], min(n_groups, len(items)))
    of_all = [items[group].tolist() for group in groups]
    order = small_at_both_ends(np.array([work[group].sum() for group in of_all]))
    return [of_all[i] for i in order]
