"""Orders of the samples, in which they are cut, and balanced replicas."""

from collections.abc import Sequence
from typing import Self

import numpy as np

from dynapipe_hpc import _kernels
from dynapipe_hpc.data.errors import InputError
from dynapipe_hpc.data.microbatch import MicroBatch
from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.microbatch_costs import microbatch_costs
from dynapipe_hpc.planner.batch.row_length import row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import CostModel, FloatArray, IntArray


class TooFewMicroBatchesError(InputError):
    """Fewer micro-batches than replicas that need one."""

    @classmethod
    def from_counts(cls, n_microbatches: int, n_replicas: int) -> Self:
        """The error for an iteration that has too few micro-batches."""
        return cls(
            f"an iteration has {n_microbatches} micro-batches for {n_replicas} replicas, each "
            "of which needs one; lower cluster.n_replicas or raise data.tokens_per_batch"
        )


def balance_replicas(
    microbatches: Sequence[MicroBatch], cost: CostModel, n_replicas: int
) -> list[list[int]]:
    """Assigns about the same work, and at least one micro-batch, to every replica.

    Balances the sums of `bottleneck_ms` by the largest differencing method: the two partial
    assignments with the greatest difference between replicas are combined, the most loaded replica
    of one with the least loaded of the other, until one assignment is left. See balance_work.hpp.

    `n_replicas`: Number of replicas, >= 1. Returns indices into `microbatches` per replica,
    ascending. Replica 0 has micro-batch 0. Raises `TooFewMicroBatchesError`: A replica would have
    nothing to do. Source: Karmarkar and Karp, "The differencing method of set partitioning",
    UCB/CSD 82/113, 1982.
    """
    return balance(microbatch_costs(microbatches, cost).bottleneck_ms, n_replicas)


def balance(work_ms: FloatArray, n_replicas: int) -> list[list[int]]:
    """Indices of micro-batches of known work, per replica; see `balance_replicas`."""
    if len(work_ms) < n_replicas:
        raise TooFewMicroBatchesError.from_counts(len(work_ms), n_replicas)
    if n_replicas == 1:
        return [list(range(len(work_ms)))]
    return _kernels.balance_work(np.ascontiguousarray(work_ms), n_replicas)


BANDS_OF_LONGEST = (32, 16)
"""Numbers of bands into which inputs up to the longest fall, in each order of pairs."""


def orders(samples: Sequence[Sample], is_encoder_decoder: bool) -> list[list[Sample]]:
    """Orders in which neighbours need little padding; only plans show which is best.

    Orders for an encoder-decoder model go through bands of inputs of about the same length. From
    band to band, targets fall and rise in turn, so that neighbours are alike on both sides.

    `samples`: Samples in any order, at least one. Returns the samples in every order.
    """
    if not is_encoder_decoder:
        return [order_samples(samples)]
    plain = order_pairs(samples)
    inputs, targets = row_lengths(plain, is_encoder_decoder=True)
    longest = inputs.max()
    bands = ((longest - inputs) * n_bands // (longest + 1) for n_bands in BANDS_OF_LONGEST)
    places = (np.lexsort((np.where(band % 2, targets, -targets), band)) for band in bands)
    return [[plain[i] for i in order.tolist()] for order in places]


def order_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Samples by length, longest first, equal ones by id: the only order that a decoder needs."""
    inputs, targets, ids = _numbers(samples)
    return [samples[i] for i in np.lexsort((ids, -(inputs + targets))).tolist()]


def order_pairs(samples: Sequence[Sample]) -> list[Sample]:
    """Samples by input, then target, longest first, and equal ones by id."""
    inputs, targets, ids = _numbers(samples)
    return [samples[i] for i in np.lexsort((ids, -targets, -inputs)).tolist()]


def _numbers(samples: Sequence[Sample]) -> list[IntArray]:
    names = ("input_tokens", "answer_tokens", "sample_id")
    return [tokens_of(samples, name) for name in names]


def halved(samples: Sequence[Sample]) -> list[Sample]:
    """Samples in an order whose halves, quarters, eighths and so on have about equal tokens.

    In packed rows, neighbours need not have similar lengths. Samples whose neighbours are alike are
    dealt into halves in turns of A, B, B, A, and each half again.
    """
    places = np.arange(len(samples))
    deals = np.arange(len(samples).bit_length())[::-1, np.newaxis]
    is_b = (places ^ places >> 1) >> deals & 1
    return [samples[i] for i in np.lexsort(is_b).tolist()]
