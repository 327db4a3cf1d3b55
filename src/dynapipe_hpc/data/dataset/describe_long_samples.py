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
    used_of_file,
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
    used = used_of_file(dataset, config)
    is_long = are_long(dataset, config)
    if not is_long.any():
        return
    kept = np.zeros(len(inputs), np.bool_)
    kept[used.kept] = True
    is_cut = kept & (used.inputs < inputs)
    is_answer_cut = (used.targets < targets) | (used.rejected < dataset.rejected_lengths)
    keeps_end = keeps_input_end(dataset, config)
    turns = inputs_after_turns(used.inputs, inputs, dataset.predicted_spans)
    loses_turns = keeps_end & (used.inputs == turns) & (dataset.spans.lengths > 0)
    left_out = "are left out"
    if config.long_samples != "drop":
        of_pairs = "their answers and the end of their prompt are"
        left_out += f" because {of_pairs if dataset.has_pairs else 'their target alone is'} longer"
    counts = {
        "lose their first turns": is_cut & loses_turns,
        "lose the start of their input": is_cut & keeps_end & ~loses_turns,
        "lose the end of their input": is_cut & ~keeps_end,
        "lose the end of their target": kept & is_answer_cut,
        left_out: ~kept,
    }
    shown = ", ".join(f"{n.sum():,} {what}" for what, n in counts.items() if n.any())
    n_used, n_all = used.lengths[used.kept].sum(), dataset.n_tokens
    yield (
        f"{is_long.sum():,} of {len(inputs):,} samples are longer than data.max_tokens "
        f"({config.max_tokens:,}): {shown} (data.long_samples = '{config.long_samples}'); "
        f"{n_all - n_used:,} of {n_all:,} tokens are not used"
    )
