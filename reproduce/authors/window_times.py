"""Times of windows of neighbouring samples in one mode of recomputation."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.memory import fits
from dynapipe_hpc.planner.batch.row_length import row_lengths
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, Shapes


def window_times_ms(
    samples: Sequence[Sample],
    cost: CostModel,
    room_bytes: FloatArray,
    *,
    memory_share: float,
    recompute: Recompute,
) -> FloatArray:
    """Times on the slowest stage of micro-batches that hold neighbouring samples.

    Args:
        samples: Samples in the order in which they are cut.
        cost: Predicts time and memory.
        room_bytes: Shape (n_stages,): what a micro-batch may need while it runs alone.
        memory_share: Share of that room which its activations may take.
        recompute: Recomputation mode of all of them.

    Returns:
        Shape (n_samples, max_samples); entry (i, k) is of samples i to i + k, forward and
        backward, and infinite from the first k on with which they do not fit.
    """
    sides = np.stack(row_lengths(samples, cost.is_encoder_decoder))
    firsts, longest = np.arange(len(samples)), np.zeros_like(sides)
    columns: list[FloatArray] = []
    while len(firsts):
        n_rows = len(columns) + 1
        longest = np.maximum(longest, sides[:, firsts + n_rows - 1])
        costs = cost.stage_costs(Shapes.padded(np.full_like(firsts, n_rows), *longest), recompute)
        keeps_its_share = (costs.stored_bytes <= memory_share * room_bytes).all(axis=1)
        allowed = fits(costs, room_bytes) & keeps_its_share
        columns.append(np.full(len(samples), np.inf))
        columns[-1][firsts[allowed]] = costs.bottleneck_ms[allowed]
        longer = allowed & (firsts + n_rows < len(samples))
        firsts, longest = firsts[longer], longest[:, longer]
    return np.stack(columns, axis=1)
