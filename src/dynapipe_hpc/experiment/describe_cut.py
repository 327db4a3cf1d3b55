"""How many samples of a dataset are cut, as text."""

import numpy as np

from dynapipe_hpc.data.dataset_file import DatasetFile


def describe_cut(dataset: DatasetFile, max_tokens: int) -> list[str]:
    """A line about the samples above data.max_tokens; none if all are used whole."""
    lengths = dataset.input_lengths + dataset.target_lengths
    beyond = np.maximum(lengths - max_tokens, 0)
    if not beyond.any():
        return []
    return [
        f"{np.count_nonzero(beyond):,} of {len(lengths):,} samples are longer than data.max_tokens "
        f"({max_tokens:,}) and are cut to it, which leaves out {beyond.sum():,} of "
        f"{lengths.sum():,} tokens"
    ]
