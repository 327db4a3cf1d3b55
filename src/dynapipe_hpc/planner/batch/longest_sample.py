"""The longest sample that can run."""

from typing import Literal

import numpy as np

from dynapipe_hpc.data.microbatch import Recompute
from dynapipe_hpc.plan.cluster import Cluster
from dynapipe_hpc.planner.batch.memory import activation_room_bytes, fits
from dynapipe_hpc.planner.batch.row_length import ROW_MULTIPLE
from dynapipe_hpc.planner.cost.cost_model import CostModel, Shapes

Side = Literal["row_tokens", "target_tokens"]


def longest_row(
    cost: CostModel,
    cluster: Cluster,
    recompute: Recompute,
    max_tokens: int,
    *,
    side: Side = "row_tokens",
    other_tokens: int = 0,
    multiple: int = ROW_MULTIPLE,
) -> int:
    """Length in tokens of the longest padded row that fits on every stage as a micro-batch alone.

    `recompute`: Mode of recomputation, one of those of `cost`. `side`: Side of the row in an
    encoder-decoder model; otherwise row_tokens. Returns a multiple of `multiple`, at most
    `max_tokens`; 0 if none fits.
    """
    tokens = np.arange(multiple, max_tokens + 1, multiple)
    other = np.full_like(tokens, other_tokens)
    sides = (tokens, other) if side == "row_tokens" else (other, tokens)
    costs = cost.stage_costs(Shapes.padded(np.ones_like(tokens), *sides), recompute)
    too_long = np.flatnonzero(~fits(costs, activation_room_bytes(cost, cluster)))
    n_fitting = too_long[0] if too_long.size else len(tokens)
    return int(n_fitting * multiple)
