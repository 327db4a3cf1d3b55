"""Orders of the samples, in which they are cut into micro-batches."""

from collections.abc import Sequence

import numpy as np

from dynapipe_hpc.data.sample import Sample
from dynapipe_hpc.planner.batch.order_in_plane import banded, hilbert, tour
from dynapipe_hpc.planner.batch.row_length import row_lengths, tokens_of
from dynapipe_hpc.planner.cost.cost_model import IntArray

GOLDEN_RATIO = (1 + 5**0.5) / 2
IN_PLANE = {"tour": tour, "hilbert": hilbert, "banded": banded}


def orders(samples: Sequence[Sample], is_encoder_decoder: bool) -> dict[str, list[Sample]]:
    """Orders in which neighbours need little padding, by name; only plans show which is best.

    Args:
        samples: Samples in any order, at least one.
        is_encoder_decoder: Whether inputs and targets are padded separately.

    Returns:
        The samples in every order, the plainest first.

    Source:
        DynaPipe, section "Micro-batch Construction".
    """
    if not is_encoder_decoder:
        return {"by length": order_samples(samples)}
    plain = order_pairs(samples)
    rows = row_lengths(plain, is_encoder_decoder=True)
    orders = {"by input and target": plain}
    for name, rule in IN_PLANE.items():
        orders[name] = [plain[i] for i in rule(*rows).tolist()]
    return orders


def mixed(samples: Sequence[Sample]) -> list[Sample]:
    """Pairs in an order in which every window holds long and short ones: for packed rows.

    These need no padding, however different their samples are. Where memory is scarce because of
    long rows, windows that share them are larger than those of like lengths could be.

    Source:
        The golden ratio's multiples, whose fractions are spread most evenly (Steinhaus, 1958).
    """
    plain = order_pairs(samples)
    place = np.arange(len(plain)) * GOLDEN_RATIO % 1.0
    return [plain[i] for i in np.argsort(place, kind="stable").tolist()]


def order_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Samples by length, longest first, and equal ones by id: all that a decoder needs."""
    inputs, targets, ids = _numbers(samples)
    return [samples[i] for i in np.lexsort((ids, -(inputs + targets))).tolist()]


def order_pairs(samples: Sequence[Sample]) -> list[Sample]:
    """Samples by input, then target, longest first, and equal ones by id."""
    inputs, targets, ids = _numbers(samples)
    return [samples[i] for i in np.lexsort((ids, -targets, -inputs)).tolist()]


def _numbers(samples: Sequence[Sample]) -> list[IntArray]:
    names = ("input_tokens", "answer_tokens", "sample_id")
    return [tokens_of(samples, name) for name in names]
