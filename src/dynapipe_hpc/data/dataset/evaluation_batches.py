"""The samples of an evaluation, in batches."""

from collections.abc import Iterable

import numpy as np

from dynapipe_hpc.data.dataset.held_out import hashes_of
from dynapipe_hpc.data.dataset.long_samples import Tokens, UsedTokens
from dynapipe_hpc.data.sample import Sample


def evaluated_samples(
    used: UsedTokens, sample_ids: Tokens, task_ids: Tokens, *, most_tokens: int, n_least: int
) -> list[Sample]:
    """The samples of an evaluation, in the order of the hashes of their ids.

    Args:
        used: Tokens used of every sample of the dataset.
        sample_ids: Ids of the samples to choose from.
        task_ids: Task id of every sample of the dataset.
        most_tokens: Most tokens of all samples together.
        n_least: Number of samples that are taken even if they have more tokens.
    """
    ordered = sample_ids[np.argsort(hashes_of(sample_ids), kind="stable")]
    tokens = used.lengths[ordered]
    n_fitting = int(np.searchsorted(np.cumsum(tokens), most_tokens, side="right"))
    return [used.sample(int(i), int(task_ids[i])) for i in ordered[: max(n_least, n_fitting)]]


def in_batches(
    samples: Iterable[Sample], tokens_per_batch: int, n_least: int
) -> list[list[Sample]]:
    """Consecutive batches of up to so many tokens, but of at least `n_least` samples."""
    batches: list[list[Sample]] = [[]]
    n_tokens = 0
    for sample in samples:
        n_tokens += sample.tokens
        if n_tokens > tokens_per_batch and len(batches[-1]) >= n_least:
            batches.append([])
            n_tokens = sample.tokens
        batches[-1].append(sample)
    if len(batches) > 1 and len(batches[-1]) < n_least:
        batches[-2:] = [batches[-2] + batches[-1]]
    return batches
