"""Norm of the gradient of the complete model."""

from functools import partial

import torch
from torch import Tensor

from dynapipe_hpc.training.collectives import Collectives
from dynapipe_hpc.training.flat_parameters import FlatParameters
from dynapipe_hpc.training.zero_partition import ZeroPartition

_PIECE = 1 << 24  # numbers whose norm is computed at once


def square_sum(
    parameters: FlatParameters, share: ZeroPartition, collectives: Collectives
) -> Tensor:
    """Squared norm of the model's gradient, a float64 scalar; all ranks of a replica together."""
    total = share.sum_by_part(
        parameters.gradients, partial(_square_sum_of, parameters, collectives.shard)
    )
    collectives.sum_within_replica(total)
    return total[0]


def _square_sum_of(parameters: FlatParameters, shard: int, extent: slice) -> Tensor:
    """Squared norm of some gradients; weights that all shards hold count on the first only."""
    gradients, unsplit = parameters.gradients, parameters.unsplit
    if shard == 0:
        return _square_sum(gradients[extent])
    before = gradients[extent.start : max(extent.start, min(extent.stop, unsplit.start))]
    after = gradients[min(extent.stop, max(extent.start, unsplit.stop)) : extent.stop]
    return _square_sum(before) + _square_sum(after)


def _square_sum(values: Tensor) -> Tensor:
    """Squared norm in float64, computed in pieces because torch copies its input to float64."""
    total = torch.zeros((), dtype=torch.float64, device=values.device)
    for start in range(0, len(values), _PIECE):
        norm = torch.linalg.vector_norm(values[start : start + _PIECE], dtype=torch.float64)
        total += norm.square()
    return total
