"""The order in which samples are cut into micro-batches."""

from collections.abc import Iterable

from dynapipe_hpc.data.sample import Sample


def order_samples(samples: Iterable[Sample]) -> list[Sample]:
    """Sorts samples by length, longest first and equal ones by id, so that neighbours pad little.

    Source:
        DynaPipe, section "Micro-batch Construction": enough for decoder-only models.
    """
    return sorted(samples, key=lambda sample: (-sample.tokens, sample.sample_id))
