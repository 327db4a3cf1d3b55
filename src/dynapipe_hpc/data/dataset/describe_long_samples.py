"""Samples that are longer than data.max_tokens, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dynapipe_hpc.data.config import DataConfig
from dynapipe_hpc.data.dataset.long_samples import (
    are_long,
    inputs_after_turns,
    keeps_input_end,
    used_tokens,
)

if TYPE_CHECKING:  # HDF5, which plans of lengths do without
    from dynapipe_hpc.data.dataset.dataset_file import DatasetFile
    from dynapipe_hpc.data.dataset.joined_datasets import Dataset


def describe_long(dataset: Dataset, config: DataConfig) -> Iterator[str]:
    """Yields a line about the samples above data.max_tokens of each dataset that has some.

    Raises:
        InputError: As for `used_tokens`.
    """
    names = [f"{entry.name}: " for entry in config.mixture or ()] or [""]
    for name, file, path in zip(names, dataset.files, config.paths, strict=True):
        yield from (name + line for line in _describe_long(file, config.alone(path)))


def _describe_long(dataset: DatasetFile, config: DataConfig) -> Iterator[str]:
    inputs, targets = dataset.input_lengths, dataset.target_lengths
    used = used_tokens(inputs, targets, config, dataset.predicted_spans)
    is_long = are_long(dataset, config)
    if not is_long.any():
        return
    kept = np.zeros(len(inputs), np.bool_)
    kept[used.kept] = True
    is_cut = kept & (used.inputs < inputs)
    keeps_end = keeps_input_end(dataset, config)
    turns = inputs_after_turns(used.inputs, inputs, dataset.predicted_spans)
    loses_turns = keeps_end & (used.inputs == turns)
    left_out = "are left out"
    if config.long_samples != "drop":
        left_out += " because their target alone is longer"
    counts = {
        "lose their first turns": is_cut & loses_turns,
        "lose the start of their input": is_cut & keeps_end & ~loses_turns,
        "lose the end of their input": is_cut & ~keeps_end,
        "lose the end of their target": kept & (used.targets < targets),
        left_out: ~kept,
    }
    shown = ", ".join(f"{n.sum():,} {what}" for what, n in counts.items() if n.any())
    n_used = (used.inputs + used.targets)[used.kept].sum()
    yield (
        f"{is_long.sum():,} of {len(inputs):,} samples are longer than data.max_tokens "
        f"({config.max_tokens:,}): {shown} (data.long_samples = '{config.long_samples}'); "
        f"{(inputs + targets).sum() - n_used:,} of {(inputs + targets).sum():,} tokens are not used"
    )
