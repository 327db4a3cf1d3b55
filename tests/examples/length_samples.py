"""Samples of given lengths."""

from collections.abc import Iterable

from dynapipe_hpc.data.sample import Sample


def samples_of(lengths: Iterable[int]) -> list[Sample]:
    """Samples 0, 1, ... of the given numbers of tokens, one of which is the target."""
    return [Sample(i, tokens - 1, 1) for i, tokens in enumerate(lengths)]
